// The flow of an end user: load the session, choose an integration, enter credentials or sign in, see the result.

import { Api, ApiError, apiBase } from './api.js';
import { Form } from './form.js';
import { currentLanguage, loadLanguage, t } from './i18n.js';
import { bodyOf, modeOf, questionsOf } from './modes.js';
import { isFramed, onParent, postToParent } from './parent.js';
import { PopupError, authorize, openPopup } from './popup.js';
import * as screens from './screens.js';
import { nameOf } from './screens.js';
import { setColors, setTheme } from './theme.js';
import { forgetToken, storeToken, storedToken } from './token.js';

/** Time limit for the parent page to send the token. */
const TOKEN_TIMEOUT_MS = 10_000;
/** Error codes for an end user who did not allow access. */
const DENIED = ['access_denied', 'user_denied', 'consent_required'];

const query = new URLSearchParams(location.search);
/** Whether a page for operators shows this page in order to preview its settings. */
const isPreview = isFramed && query.get('preview') === 'true';
const panel = document.getElementById('panel');
const announcer = document.getElementById('announcer');

let api, session, integrations;
/** Aborts the requests of the previous screen. */
let leaving = new AbortController();
let tokenTimeout;
/** Settings that the parent page previews. */
let previewed = {};

start();

async function start() {
    if (isFramed || query.get('embedded') === 'true') document.documentElement.classList.add('is-framed');
    setTheme(query.get('theme') ?? 'system');
    await loadLanguage([query.get('lang'), ...navigator.languages].filter(Boolean));
    show(screens.loading());
    listen();
    postToParent({ type: 'ready' });
    const token = takeToken();
    if (token) return open(token);
    if (!isFramed) return stop('no_token');
    tokenTimeout = setTimeout(() => stop('no_token'), TOKEN_TIMEOUT_MS);
}

/** Takes the token from the URL of this page and removes it there, because URLs are stored, shown and shared. */
function takeToken() {
    const token = query.get('session_token');
    if (isFramed) return token;
    if (!token) return storedToken();
    storeToken(token);
    query.delete('session_token');
    history.replaceState(null, '', query.size > 0 ? `?${query}` : location.pathname);
    return token;
}

function listen() {
    onParent('session_token', ({ sessionToken }) => {
        if (typeof sessionToken === 'string') open(sessionToken);
    });
    if (isPreview) {
        onParent('settings_changed', ({ payload }) => preview(payload));
        // The person works in the page around this one, which stays open.
        return;
    }
    document.addEventListener('keydown', (event) => {
        if (event.key === 'Escape' && isFramed) close();
        if (event.key === 'Tab' && isFramed) keepFocus(event);
    });
    document.addEventListener('pointerdown', (event) => {
        if (!isFramed || panel.contains(event.target)) return;
        api?.note('click:outside');
        close();
    });
}

function preview(settings) {
    if (!settings || typeof settings !== 'object') return;
    previewed = { ...previewed, ...settings };
    if (!session) return;
    session.connectUISettings = { ...session.connectUISettings, ...previewed };
    dress(session.connectUISettings);
    if (panel.querySelector('.entries')) panel.querySelector('h1').textContent = title();
}

async function open(token) {
    clearTimeout(tokenTimeout);
    api = new Api(apiBase(query.get('apiURL')), token, currentLanguage());
    show(screens.loading());
    try {
        [session, integrations] = await Promise.all([api.session(), api.integrations()]);
    } catch (error) {
        return stopAt(error, () => open(token));
    }
    session.connectUISettings = { ...session.connectUISettings, ...previewed };
    dress(session.connectUISettings);
    if (!query.get('theme')) setTheme(session.connectUISettings.defaultTheme);
    watchExpiry(session.expires_at);
    api.note('open');
    // The title is on the list only.
    if (integrations.length === 1 && !isPreview) choose(integrations[0]);
    else showList();
}

function dress(settings) {
    setColors(settings);
    if (settings.defaultTheme && !query.get('theme')) setTheme(settings.defaultTheme);
}

/** The title of the settings. The default title is translated. */
function title() {
    const { title } = session.connectUISettings;
    return !title || title === 'Connect your account' ? t('title') : title;
}

function watchExpiry(endsAt) {
    const left = Date.parse(endsAt) - Date.now();
    // Keep the success screen, and wait for users who are signing in at the provider.
    const expire = () => panel.querySelector('.badge.is-good, .pulse') || stop('expired');
    if (left > 0) setTimeout(expire, left);
}

function showList() {
    api.note('view:list');
    show(
        screens.list({
            title: title(),
            integrations,
            logoOf,
            onChoose: (integration) => {
                api.note('click:integration', integration.unique_key);
                choose(integration);
            },
            onSearch: (count) => announce(count === 1 ? t('list.found_one') : t('list.found', { count })),
        }),
    );
}

async function choose(integration) {
    show(screens.loading(), { onBack: wayBack() });
    const { signal } = leaving;
    let provider;
    try {
        provider = await api.provider(integration.provider);
    } catch (error) {
        return signal.aborted || stopAt(error, () => choose(integration));
    }
    if (!signal.aborted) showIntegration(integration, provider);
}

function showIntegration(integration, provider) {
    const key = integration.unique_key;
    const { route } = modeOf(provider);
    const settled = session.integrations_config_defaults[key]?.connection_config ?? {};
    const form = new Form(questionsOf(provider, settled));
    const lead = form.fields.length > 0 && route ? 'typed' : route ? 'none' : 'window';
    const docs = session.overrides?.[key]?.docs_connect ?? provider.docs_connect ?? provider.docs;
    const view = screens.integration({
        integration,
        logoOf,
        isAgain: session.isReconnecting,
        lead: t(`connect.lead_${lead}`, { name: nameOf(integration) }),
        scopes: route ? [] : scopesOf(integration, provider, settled),
        docs: isWebAddress(docs) && lead !== 'none' && {
            url: docs,
            text: route ? t('connect.docs') : t('connect.docs_window', { name: nameOf(integration) }),
        },
        onDocs: () => api.note('click:doc', key),
        form,
        onSubmit: () => {
            api.note('click:connect', key);
            view.showProblem(null);
            if (!form.check()) return;
            if (route) connectTyped(integration, provider, form, view);
            else connectInWindow(integration, provider, form.answers('params'));
        },
    });
    api.note('view:integration', key);
    show(view.element, { onBack: wayBack() });
}

async function connectTyped(integration, provider, form, view) {
    const { signal } = leaving;
    const body = bodyOf(provider, form.answers('credentials'));
    view.setBusy(true);
    announce(t('connect.checking', { name: nameOf(integration) }));
    try {
        const { route } = modeOf(provider);
        const connected = await api.connect(route, integration.unique_key, form.answers('params'), body);
        // Show this even if the user has left the screen, because the account is connected.
        succeed(integration, connected);
    } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        report(error.code, error.message);
        if (error.isExpiry) return stop('expired');
        if (signal.aborted) return;
        view.setBusy(false);
        api.note('view:credentials_error', integration.unique_key);
        form.markRefused(error.fields);
        view.showProblem(error.code === 'unreachable' ? t('failure.unreachable') : sentence(error.message));
    }
}

/** Must run in a click handler: browsers only then allow a new window. */
function connectInWindow(integration, provider, answers) {
    const key = integration.unique_key;
    const again = () => connectInWindow(integration, provider, answers);
    const cancel = () => showIntegration(integration, provider);
    const popup = openPopup();
    if (!popup) {
        api.note('popup:blocked_by_browser', key);
        report('blocked_by_browser', t('window.blocked_title'));
        return show(screens.blocked({ onOpen: again, onCancel: cancel }), { onBack: wayBack() });
    }
    const wait = (isClosed) => screens.waiting({ integration, logoOf, isClosed, onAgain: again, onCancel: cancel });
    show(wait(false), { onBack: wayBack() });
    const { signal } = leaving;
    const onClosed = () => {
        api.note('popup:closed_early', key);
        if (query.get('detectClosedAuthWindow') === 'true') {
            return fail(integration, provider, new PopupError('window_closed'));
        }
        replace(wait(true), { onBack: wayBack() });
    };
    const url = api.connectUrl('oauth/connect', key, answers);
    authorize(popup, url, api.socketUrl(session.websocketsPath ?? '/'), { onClosed, signal }).then(
        (connected) => succeed(integration, connected),
        (error) => signal.aborted || fail(integration, provider, error),
    );
}

function succeed(integration, { connectionId, providerConfigKey, isPending }) {
    api.note('view:success', integration.unique_key);
    const payload = { connectionId, providerConfigKey: providerConfigKey ?? integration.unique_key };
    postToParent({ type: 'connect', payload: isPending ? { ...payload, isPending } : payload });
    forgetToken();
    const finish = () => {
        api.note('click:finish', integration.unique_key);
        postToParent({ type: 'close' });
    };
    show(screens.success({ name: nameOf(integration), isPending, onFinish: isFramed && finish }));
}

function fail(integration, provider, error) {
    report(error.code, error.message || t('failure.title', { name: nameOf(integration) }));
    api.note('view:unknown_error', integration.unique_key);
    const name = nameOf(integration);
    const isDenied = DENIED.some((word) => `${error.code} ${error.message}`.includes(word));
    const reason = error.code === 'window_closed' ? t('failure.closed') : isDenied ? t('failure.denied', { name }) : null;
    const onRetry = () => showIntegration(integration, provider);
    show(screens.failure({ name, reason, details: reason ? null : sentence(error.message), onRetry }), { onBack: wayBack() });
}

/** Shows that a required API request failed. */
function stopAt(error, onRetry) {
    if (!(error instanceof ApiError)) throw error;
    if (error.isExpiry) return stop('expired');
    report(error.code, error.message);
    stop('broken', { details: error.code === 'unreachable' ? t('failure.unreachable') : sentence(error.message), onRetry });
}

function stop(kind, rest = {}) {
    if (kind === 'expired') {
        forgetToken();
        report('session_expired', t('expired.title'));
    }
    if (kind === 'no_token') report('missing_connect_session_token', t('no_token.title'));
    show(screens.stop({ kind, ...rest }));
}

function report(errorType, errorMessage) {
    postToParent({ type: 'error', payload: { errorType, errorMessage } });
}

function close() {
    api?.note('click:close');
    postToParent({ type: 'close' });
}

function wayBack() {
    return integrations.length > 1 || isPreview ? showList : null;
}

/** Leaves the current screen and shows another. */
function show(screen, options) {
    leaving.abort();
    leaving = new AbortController();
    replace(screen, options);
}

/** Shows another screen of the same step, without aborting its requests. */
function replace(screen, { onBack } = {}) {
    const nodes = screens.panel({ screen, onBack, onClose: isFramed && close }).filter(Boolean);
    panel.replaceChildren(...nodes);
    panel.scrollTop = 0;
    const heading = panel.querySelector('h1');
    document.title = heading.textContent;
    if (!isPreview) heading.focus({ preventScroll: true });
}

function announce(text) {
    announcer.textContent = text;
}

/** Keeps the keyboard focus within the frame while it covers the page. */
function keepFocus(event) {
    const stops = [...panel.querySelectorAll('a[href], button, input, select, textarea, summary')];
    const reachable = stops.filter((element) => element.checkVisibility());
    const isOutside = !reachable.includes(document.activeElement);
    const [first, last] = [reachable[0], reachable.at(-1)];
    if (event.shiftKey && (document.activeElement === first || isOutside)) {
        event.preventDefault();
        last?.focus();
    } else if (!event.shiftKey && document.activeElement === last) {
        event.preventDefault();
        first?.focus();
    }
}

/** Loads logos from the address of the API that this page uses. */
function logoOf(integration) {
    const { pathname } = new URL(integration.logo, api.base);
    return new URL(pathname, api.base).href;
}

function scopesOf(integration, provider, settled) {
    const override = settled.oauth_scopes_override;
    const own = typeof override === 'string' ? override.split(/[\s,]+/).filter(Boolean) : integration.scopes;
    return own?.length ? own : (provider.default_scopes ?? []);
}

/** Messages of the API start with a lower-case letter. */
function sentence(text) {
    return text.charAt(0).toUpperCase() + text.slice(1);
}

function isWebAddress(text) {
    return URL.canParse(text) && ['http:', 'https:'].includes(new URL(text).protocol);
}
