// What HTML lacks: copy buttons, questions before a change, forms that keep the typed text when the host rejects them,
// and parts of pages that follow changes. Every page works without this script.

"use strict";

// Only for HTML of this host, which escapes everything that it contains.
const policy = window.trustedTypes?.createPolicy("syncline", { createHTML: (html) => html }) ?? {
    createHTML: (html) => html,
};

document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) {
        // An open menu closes when the person clicks elsewhere.
        for (const menu of document.querySelectorAll("details.switcher[open], details.menu[open]")) {
            if (!menu.contains(event.target)) menu.open = false;
        }
        return;
    }
    const label = button.dataset.label ?? button.textContent;
    button.dataset.label = label;
    try {
        await navigator.clipboard.writeText(button.dataset.copy);
        button.textContent = "Copied";
    } catch {
        button.textContent = "Copy it by hand";
    }
    setTimeout(() => (button.textContent = label), 2000);
});

document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of document.querySelectorAll("details.switcher[open], details.menu[open]")) {
        menu.open = false;
        menu.querySelector("summary").focus();
    }
});

document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (form.dataset.confirm && !window.confirm(form.dataset.confirm)) {
        event.preventDefault();
        return;
    }
    const error = form.querySelector(".form-error");
    if (form.method !== "post" || !error || form.target) return;
    event.preventDefault();
    const buttons = form.querySelectorAll("button[type=submit]");
    const body = new URLSearchParams(new FormData(form, event.submitter));
    error.hidden = true;
    for (const button of buttons) button.disabled = true;
    try {
        const response = await fetch(form.action, { method: "POST", body, headers: { "X-Dashboard-Script": "1" } });
        const location = response.headers.get("X-Dashboard-Location");
        if (location) {
            // Also when only the fragment differs, so that the page shows the change.
            if (new URL(location, document.baseURI).href === document.location.href) document.location.reload();
            else document.location.assign(location);
            return;
        }
        if (response.ok) {
            show(await response.text());
            return;
        }
        const problem = await response.json();
        if (problem.code === "sign_in_required") {
            document.location.reload();
            return;
        }
        report(error, problem.message);
    } catch {
        report(error, "The host does not respond. Check the network and submit the form again.");
    } finally {
        for (const button of buttons) button.disabled = false;
    }
});

// Shows the content of a page that was the response to a form.
function show(html) {
    const page = new DOMParser().parseFromString(policy.createHTML(html), "text/html");
    document.title = page.title;
    document.querySelector("main").replaceWith(document.adoptNode(page.querySelector("main")));
    document.querySelector("main").focus();
    window.scrollTo(0, 0);
    follow();
}

function report(error, message) {
    error.textContent = message;
    error.hidden = false;
    error.scrollIntoView({ block: "nearest" });
}

// Streams of the parts that follow changes. They are closed while the page is hidden, because a browser has few
// network connections for all its tabs.
let streams = [];

function follow() {
    for (const stream of streams) stream.close();
    streams = [];
    if (document.hidden) return;
    for (const part of document.querySelectorAll("[data-live]")) {
        const stream = new EventSource(part.dataset.live);
        stream.addEventListener("part", (event) => update(part, event.data));
        streams.push(stream);
    }
}

// Replaces a part, except while the person uses a control in it.
function update(part, html) {
    if (part.contains(document.activeElement) && document.activeElement !== part) return;
    const open = new Set([...part.querySelectorAll("details[open][id]")].map((details) => details.id));
    part.innerHTML = policy.createHTML(html);
    for (const details of part.querySelectorAll("details[id]")) if (open.has(details.id)) details.open = true;
}

// The preview of the Connect UI shows what was typed into the form, before it is saved.
function sendSettings() {
    const frame = document.querySelector("iframe[data-preview]");
    const form = document.querySelector("form[data-previewed]");
    if (!frame || !form) return;
    const { title, color } = Object.fromEntries(new FormData(form));
    const payload = {
        title: title.trim() || frame.dataset.defaultTitle,
        primaryColor: color,
        theme: { light: { primary: color }, dark: { primary: color } },
    };
    frame.contentWindow.postMessage({ type: "settings_changed", payload }, frame.dataset.preview);
}

document.addEventListener("input", (event) => {
    if (event.target.closest("form[data-previewed]")) sendSettings();
});
window.addEventListener("message", (event) => {
    const frame = document.querySelector("iframe[data-preview]");
    if (frame && event.source === frame.contentWindow && event.data?.type === "ready") sendSettings();
});
document.querySelector("form[data-opens-preview]")?.submit();

document.addEventListener("visibilitychange", follow);
follow();
