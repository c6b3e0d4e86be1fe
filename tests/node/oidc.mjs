// An OAuth 2 server for the tests: oidc-provider, which is certified, on 127.0.0.1.
//
//     node oidc.mjs PORT [ACCESS_TOKEN_SECONDS]
//
// Clients are registered at /reg. PKCE is required, refresh tokens rotate, and reusing one revokes its grant. Any login
// is accepted; people and scripts can use the pages. `POST /test/fault?token=html|error|slow|late|hold|none` breaks the
// token endpoint. `late` only delays its responses. `hold` holds requests until `POST /test/release` fails them.
import { Provider } from 'oidc-provider';

const port = Number(process.argv[2]);
const accessTokenSeconds = Number(process.argv[3] ?? 3600);
const issuer = `http://127.0.0.1:${port}`;
let fault = 'none';
const held = [];

const provider = new Provider(issuer, {
    clientDefaults: {
        grant_types: ['authorization_code', 'refresh_token'],
        response_types: ['code'],
        token_endpoint_auth_method: 'client_secret_post',
    },
    cookies: { keys: ['only for tests'] },
    features: {
        devInteractions: { enabled: true },
        registration: { enabled: true },
        revocation: { enabled: true },
        introspection: { enabled: true },
    },
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    issueRefreshToken: async () => true,
    pkce: { required: () => true },
    rotateRefreshToken: true,
    scopes: ['openid', 'offline_access', 'read', 'write'],
    ttl: { AccessToken: accessTokenSeconds, Grant: 86400, Interaction: 600, Session: 86400, RefreshToken: 86400 },
});

provider.use(async (ctx, next) => {
    if (ctx.path === '/test/fault') {
        fault = ctx.query.token;
        ctx.body = fault;
        return;
    }
    if (ctx.path === '/test/held') {
        ctx.body = String(held.length);
        return;
    }
    if (ctx.path === '/test/release') {
        ctx.body = String(held.length);
        held.splice(0).forEach((release) => release());
        return;
    }
    if (ctx.path === '/token' && fault === 'hold') {
        await new Promise((resolve) => held.push(resolve));
        ctx.status = 500;
        return;
    }
    if (ctx.path === '/token' && fault === 'late') {
        await next();
        await new Promise((resolve) => setTimeout(resolve, 1_000));
        return;
    }
    if (ctx.path === '/token' && fault !== 'none') {
        if (fault === 'slow') {
            await new Promise((resolve) => setTimeout(resolve, 60_000));
        }
        ctx.status = fault === 'error' ? 500 : 200;
        ctx.type = 'text/html';
        ctx.body = '<!DOCTYPE html><title>Down for maintenance</title><script>alert(1)</script>';
        return;
    }
    await next();
});
provider.listen(port, '127.0.0.1', () => console.log(`listening at ${issuer}`));
