// Stores the session token, so that the end user can reload the page. A browser can deny storage, for example to a frame
// of another site. Then the page works without it.

const KEY = 'syncline.session_token';

export const storedToken = () => attempt((storage) => storage.getItem(KEY));

export const storeToken = (token) => attempt((storage) => storage.setItem(KEY, token));

export const forgetToken = () => attempt((storage) => storage.removeItem(KEY));

function attempt(use) {
    try {
        return use(sessionStorage);
    } catch {
        return null;
    }
}
