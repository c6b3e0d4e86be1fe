// How each auth mode of the catalogue connects: with a form for credentials, or in another window.

/** A question without a text in the catalogue. Its text has a key that starts with `ask.`. */
const asked = (name, options = {}) => ({ name, wording: name, ...options });

const username = asked('username', { order: 1 });
const password = asked('password', { secret: true, order: 2 });

/**
 * `route` accepts the credentials; without one, the end user is redirected to the provider. `questions` apply if the
 * catalogue entry has none. `type` is an additional member of the body.
 */
const TYPED = {
    API_KEY: { route: 'api-auth/api-key', questions: [asked('apiKey', { secret: true })] },
    BASIC: { route: 'api-auth/basic', questions: [username, password], always: ['username', 'password'] },
    TBA: {
        route: 'auth/tba',
        questions: [asked('token_id', { order: 1 }), asked('token_secret', { secret: true, order: 2 })],
    },
    OAUTH2_CC: {
        route: 'oauth2/auth',
        questions: [asked('client_id', { order: 1 }), asked('client_secret', { secret: true, order: 2 })],
    },
    TWO_STEP: { route: 'auth/two-step', questions: [], type: 'TWO_STEP' },
    JWT: { route: 'auth/jwt', questions: [], type: 'JWT' },
    SIGNATURE: { route: 'auth/signature', questions: [username, password], type: 'SIGNATURE' },
    BILL: {
        route: 'auth/bill',
        questions: [
            username,
            password,
            asked('organization_id', { order: 3 }),
            asked('dev_key', { secret: true, order: 4 }),
        ],
    },
    AWS_SIGV4: {
        route: 'auth/aws-sigv4',
        questions: [asked('role_arn', { order: 1 }), asked('region', { optional: true, order: 2 })],
    },
    NONE: { route: 'auth/unauthenticated', questions: [] },
};

/** Returns how a provider connects, by its auth mode. */
export function modeOf(provider) {
    return TYPED[provider.auth_mode] ?? { route: null, questions: [] };
}

/** Returns the questions for the end user: those about the account first, optional ones last. */
export function questionsOf(provider, settled) {
    const config = entries(provider.connection_config).map((question) => ({ ...question, into: 'params' }));
    const own = entries(provider.credentials);
    const credentials = own.length > 0 ? own : modeOf(provider).questions;
    const open = config.filter((question) => !question.hidden && !(question.name in settled));
    const all = [...open.sort(byOrder), ...credentials.map((question) => ({ ...question, into: 'credentials' })).sort(byOrder)];
    const needed = all.filter((question) => !question.automated);
    return [...needed.filter((question) => !question.optional), ...needed.filter((question) => question.optional)];
}

/** Returns the body for the route of the auth mode. */
export function bodyOf(provider, credentials) {
    const mode = modeOf(provider);
    const missing = (mode.always ?? []).filter((name) => !(name in credentials)).map((name) => [name, '']);
    const body = { ...Object.fromEntries(missing), ...credentials, ...(mode.type && { type: mode.type }) };
    return Object.keys(body).length > 0 ? body : undefined;
}

function entries(questions = {}) {
    return Object.entries(questions).map(([name, question]) => ({ ...question, name }));
}

function byOrder(one, other) {
    return (one.order ?? Infinity) - (other.order ?? Infinity) || 0;
}
