// The screens of all steps. A screen is a heading, which gets the focus, and its content. Callers pass the handlers of
// its buttons.

import { h, icon } from './dom.js';
import { t } from './i18n.js';

const SCOPES_SHOWN = 6;

/** The parts of the panel: the buttons to go back and to close, and the screen. */
export function panel({ screen, onBack, onClose }) {
    const bar = h(
        'div',
        { class: 'bar' },
        onBack && iconButton('back', t('back'), onBack),
        onClose && iconButton('close', t('close'), onClose, 'close'),
    );
    return [(onBack || onClose) && bar, screen];
}

export function loading() {
    return h('div', { class: 'screen is-centred', 'aria-busy': 'true' }, heading(t('loading'), 'visually-hidden'), spinner());
}

/** All integrations that can be connected. `onSearch` gets the number of matches. */
export function list({ title, integrations, logoOf, onChoose, onSearch }) {
    const entries = integrations.map((integration) => {
        const isAlone = integrations.every((other) => other === integration || other.display_name !== integration.display_name);
        const button = h(
            'button',
            { type: 'button', class: 'entry', onclick: () => onChoose(integration) },
            logo(integration, logoOf),
            h('span', { class: 'entry-name' }, integration.display_name),
            !isAlone && h('span', { class: 'entry-key' }, integration.unique_key),
            icon('next'),
        );
        return { element: h('li', {}, button), text: `${integration.display_name} ${integration.unique_key}`.toLowerCase() };
    });
    const items = h('ul', { class: 'entries' }, ...entries.map((entry) => entry.element));
    const clear = h('button', { type: 'button', class: 'link', onclick: () => search('') }, t('list.clear'));
    const words = h('p', {});
    const nothing = h('div', { class: 'nothing', hidden: true }, words, clear);
    const input = h('input', {
        type: 'search',
        class: 'input',
        id: 'search',
        autocomplete: 'off',
        spellcheck: 'false',
        placeholder: t('list.search'),
        'aria-label': t('list.search_for'),
        oninput: () => filter(),
    });

    function search(text) {
        input.value = text;
        input.focus();
        filter();
    }
    function filter() {
        const text = input.value.trim().toLowerCase();
        for (const entry of entries) entry.element.hidden = !entry.text.includes(text);
        const count = entries.filter((entry) => !entry.element.hidden).length;
        nothing.hidden = count > 0;
        words.textContent = t('list.none_found', { text: input.value.trim() });
        onSearch(count);
    }

    const isLong = integrations.length > 5;
    return h(
        'div',
        { class: 'screen' },
        heading(title),
        h('p', { class: 'lead' }, integrations.length ? t('list.lead') : t('list.empty')),
        isLong && h('div', { class: 'search' }, icon('search'), input),
        items,
        nothing,
    );
}

/** What one integration needs: a form, or a button that opens the provider's page. */
export function integration({ integration, logoOf, isAgain, lead, scopes, docs, onDocs, form, onSubmit }) {
    const name = nameOf(integration);
    const alert = h('div', { class: 'alert', role: 'alert', hidden: true });
    const submit = h('button', { type: 'submit', class: 'primary' }, t(isAgain ? 'connect.start_again' : 'connect.start'));
    const element = h(
        'form',
        {
            class: 'screen',
            novalidate: true,
            onsubmit: (event) => {
                event.preventDefault();
                if (submit.getAttribute('aria-disabled') !== 'true') onSubmit();
            },
        },
        h(
            'div',
            { class: 'head' },
            logo(integration, logoOf, 'is-large'),
            heading(t(isAgain ? 'connect.title_again' : 'connect.title', { name })),
        ),
        h('p', { class: 'lead' }, isAgain && h('span', {}, t('connect.lead_again', { name }), ' '), lead),
        ...form.elements,
        scopes.length > 0 && scopeList(name, scopes),
        docs && docsLink(docs, onDocs),
        alert,
        submit,
        h('p', { class: 'secured' }, icon('lock'), t('secured')),
    );
    return {
        element,
        /** Shows whether a request is in progress. The button keeps the focus. */
        setBusy(isBusy) {
            submit.setAttribute('aria-disabled', String(isBusy));
            submit.replaceChildren(...(isBusy ? [spinner(), t('connect.checking', { name })] : [t('connect.start')]));
            if (!isBusy && isAgain) submit.replaceChildren(t('connect.start_again'));
        },
        showProblem(text) {
            alert.hidden = !text;
            alert.replaceChildren(...(text ? [icon('warning'), h('div', {}, h('strong', {}, t('form.refused', { name })), h('p', {}, text))] : []));
        },
    };
}

/** The provider's page is open in another window. */
export function waiting({ integration, logoOf, isClosed, onAgain, onCancel }) {
    const name = nameOf(integration);
    return h(
        'div',
        { class: 'screen is-centred' },
        isClosed ? badge('window', 'is-warning') : h('div', { class: 'pulse' }, logo(integration, logoOf, 'is-large')),
        heading(t(isClosed ? 'window.closed_title' : 'window.title')),
        h('p', { class: 'lead' }, t(isClosed ? 'window.closed_lead' : 'window.lead', { name })),
        isClosed && h('button', { type: 'button', class: 'primary', onclick: onAgain }, t('window.again')),
        h('button', { type: 'button', class: 'secondary', onclick: onCancel }, t('window.cancel')),
    );
}

export function blocked({ onOpen, onCancel }) {
    return h(
        'div',
        { class: 'screen is-centred' },
        badge('window', 'is-warning'),
        heading(t('window.blocked_title')),
        h('p', { class: 'lead' }, t('window.blocked_lead')),
        h('button', { type: 'button', class: 'primary', onclick: onOpen }, t('window.open')),
        h('button', { type: 'button', class: 'secondary', onclick: onCancel }, t('window.cancel')),
    );
}

export function success({ name, isPending, onFinish }) {
    return h(
        'div',
        { class: 'screen is-centred' },
        badge('done', 'is-good'),
        heading(t('success.title', { name })),
        h('p', { class: 'lead' }, isPending ? t('success.pending', { name }) : t('success.lead')),
        onFinish
            ? h('button', { type: 'button', class: 'primary', onclick: onFinish }, t('success.finish'))
            : h('p', { class: 'lead' }, t('success.leave')),
    );
}

export function failure({ name, reason, details, onRetry }) {
    return h(
        'div',
        { class: 'screen is-centred' },
        badge('warning', 'is-bad'),
        heading(t('failure.title', { name })),
        h('p', { class: 'lead' }, reason ?? t('failure.lead')),
        details && h('details', {}, h('summary', {}, t('failure.details')), h('p', {}, details)),
        h('button', { type: 'button', class: 'primary', onclick: onRetry }, t('failure.retry')),
    );
}

/** The end of the flow: `expired`, `no_token` or `broken`. */
export function stop({ kind, details, onRetry }) {
    return h(
        'div',
        { class: 'screen is-centred' },
        badge(kind === 'expired' ? 'clock' : 'warning', 'is-warning'),
        heading(t(`${kind}.title`)),
        h('p', { class: 'lead' }, t(`${kind}.lead`)),
        details && h('p', { class: 'lead' }, details),
        onRetry && h('button', { type: 'button', class: 'primary', onclick: onRetry }, t('failure.retry')),
    );
}

/** The name of an integration within a sentence, without the auth mode in parentheses, which only the list shows. */
export function nameOf(integration) {
    return integration.display_name.replace(/ \([^()]*\)$/, '');
}

function heading(text, style = '') {
    return h('h1', { tabindex: '-1', class: style }, text);
}

function iconButton(name, label, onclick, place = '') {
    return h('button', { type: 'button', class: `icon-button ${place}`, 'aria-label': label, title: label, onclick }, icon(name));
}

function badge(name, style) {
    return h('div', { class: `badge ${style}` }, icon(name));
}

function spinner() {
    return h('span', { class: 'spinner', 'aria-hidden': 'true' });
}

/** The logo of an integration, or the first letter of its name if there is none. */
function logo(integration, logoOf, style = '') {
    const frame = h('span', { class: `logo ${style}`, 'aria-hidden': 'true' });
    const letter = () => frame.replaceChildren(integration.display_name.trim().charAt(0).toUpperCase());
    frame.append(h('img', { src: logoOf(integration), alt: '', onerror: letter }));
    return frame;
}

function scopeList(name, scopes) {
    const items = scopes.map((scope, index) => h('li', { hidden: index >= SCOPES_SHOWN }, h('code', {}, scope)));
    const more = h('button', { type: 'button', class: 'link' }, t('connect.scopes_more', { count: scopes.length }));
    more.addEventListener('click', () => {
        for (const item of items) item.hidden = false;
        more.remove();
    });
    return h(
        'section',
        { class: 'scopes' },
        h('h2', {}, t('connect.scopes', { name })),
        h('ul', {}, ...items),
        scopes.length > SCOPES_SHOWN && more,
    );
}

function docsLink({ url, text }, onDocs) {
    return h(
        'p',
        { class: 'docs' },
        h(
            'a',
            { href: url, target: '_blank', rel: 'noopener noreferrer', onclick: onDocs },
            text,
            icon('external'),
            h('span', { class: 'visually-hidden' }, t('connect.new_tab')),
        ),
    );
}
