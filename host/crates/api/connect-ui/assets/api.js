// Client of the REST API with a session token.

/** An error response of the API, or no response (`code` is `unreachable`). */
export class ApiError extends Error {
    constructor(code, message, fields = []) {
        super(message);
        this.code = code;
        /** The problems of the request: `{path, message}`. */
        this.fields = fields;
    }

    get isExpiry() {
        return ['unknown_connect_session_token', 'invalid_connect_session_token_format'].includes(this.code);
    }
}

/**
 * Returns the address of the API with a trailing slash. The token is sent there, so the author of a link must not be
 * able to choose it: `wanted` only selects one of the two addresses of this host.
 */
export function apiBase(wanted) {
    const configured = document.querySelector('meta[name="syncline-api"]').content;
    const known = [new URL(configured, document.baseURI).href, new URL('../', document.baseURI).href];
    const withSlash = (url) => (url.endsWith('/') ? url : `${url}/`);
    const addresses = known.map(withSlash);
    if (!wanted) return addresses[0];
    const match = URL.canParse(wanted) && addresses.find((address) => address === withSlash(new URL(wanted).href));
    if (!match) console.warn(`apiURL is not an address of this service and was ignored; it is ${addresses[0]}`);
    return match || addresses[0];
}

export class Api {
    constructor(base, token, language) {
        this.base = base;
        this.token = token;
        this.language = language;
    }

    session() {
        return this.#get('connect/session');
    }

    integrations() {
        return this.#get('integrations');
    }

    provider(slug) {
        return this.#get(`providers/${encodeURIComponent(slug)}`);
    }

    /** Posts credentials to a route that connects. Returns `{connectionId, providerConfigKey}`. */
    connect(route, integration, answers, credentials) {
        const url = this.connectUrl(route, integration, answers);
        const body = credentials && JSON.stringify(credentials);
        return this.#send(url, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body });
    }

    /** Returns the URL of a route that connects, with the answers to the provider's questions. */
    connectUrl(route, integration, answers) {
        const url = new URL(`${route}/${encodeURIComponent(integration)}`, this.base);
        url.searchParams.set('connect_session_token', this.token);
        for (const [name, value] of Object.entries(answers)) url.searchParams.set(`params[${name}]`, value);
        return url;
    }

    socketUrl(path) {
        const url = new URL(path, this.base);
        url.protocol = url.protocol.replace('http', 'ws');
        return url;
    }

    /** Reports a step of the user. Failures are ignored. */
    note(event, integration) {
        const dimensions = integration && { integration };
        const body = JSON.stringify({ token: this.token, event, timestamp: new Date().toISOString(), dimensions });
        const headers = { 'Content-Type': 'application/json' };
        fetch(new URL('connect/telemetry', this.base), { method: 'POST', headers, body, keepalive: true }).catch(() => {});
    }

    async #get(path) {
        const headers = { Authorization: `Bearer ${this.token}`, 'Accept-Language': this.language };
        return (await this.#send(new URL(path, this.base), { headers })).data;
    }

    async #send(url, options) {
        let response, body;
        try {
            response = await fetch(url, { ...options, referrerPolicy: 'no-referrer' });
            body = await response.json();
        } catch {
            throw new ApiError('unreachable', '');
        }
        if (response.ok) return body;
        const error = body.error ?? {};
        throw new ApiError(error.code ?? 'unreachable', error.message ?? '', error.errors);
    }
}
