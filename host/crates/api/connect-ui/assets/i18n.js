// What the page says, in the language of whoever reads it. A language is one file of `locales`.

const LANGUAGES = ['en', 'de', 'es', 'fr', 'ja'];

let messages = {};
let language = LANGUAGES[0];

/** Loads the first language of the list that there is; regions do not matter. */
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

/** The message of that key, with `{name}` replaced by `values.name`. */
export function t(key, values = {}) {
    return messages[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
}
