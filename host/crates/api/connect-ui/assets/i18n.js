// The texts of the page in the language of the user. Each language is a file in `locales`.

const LANGUAGES = ['en', 'de', 'es', 'fr', 'ja'];

let messages = {};
let language = LANGUAGES[0];

/** Loads the first supported language of the list. Regions are ignored. */
export async function loadLanguage(wanted) {
    const known = wanted.map((tag) => tag.toLowerCase().split('-')[0]).find((tag) => LANGUAGES.includes(tag));
    language = known ?? LANGUAGES[0];
    const response = await fetch(new URL(`locales/${language}.json`, import.meta.url));
    messages = await response.json();
    document.documentElement.lang = language;
}

export function currentLanguage() {
    return language;
}

/** Returns the text of a key, with `{name}` replaced by `values.name`. */
export function t(key, values = {}) {
    return messages[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
}
