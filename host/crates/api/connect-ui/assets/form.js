// A form with the questions of a provider. The catalogue defines their texts and validation.

import { h, icon } from './dom.js';
import { t } from './i18n.js';

/** Patterns for the formats of the catalogue. */
const FORMATS = {
    hostname: /^(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+$/i,
    uuid: /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i,
    email: /^[^\s@]+@[^\s@]+\.[^\s@]+$/,
};

/** One question on the page. */
class Field {
    constructor(question) {
        this.question = question;
        this.id = `field-${question.into}-${question.name}`;
        this.input = this.#makeInput();
        this.error = h('p', { class: 'field-error', id: `${this.id}-error` });
        this.element = this.#makeElement();
        // Errors appear after the first submission and disappear as soon as they are corrected.
        this.input.addEventListener('input', () => this.isMarked && this.mark(this.problem()));
    }

    get title() {
        return this.question.wording ? t(`ask.${this.question.wording}`) : this.question.title || this.question.name;
    }

    /** The answer without a prefix and suffix that the user pasted. */
    get answer() {
        const { prefix = '', suffix = '' } = this.question;
        let text = this.input.value.trim();
        if (prefix && text.startsWith(prefix)) text = text.slice(prefix.length).replace(/\/+$/, '');
        if (suffix && text.endsWith(suffix)) text = text.slice(0, -suffix.length);
        return text;
    }

    /** The problem of the answer, or `null` if it is valid. */
    problem() {
        const { optional, pattern, format, example } = this.question;
        const answer = this.answer;
        if (answer === '') return optional ? null : t('form.required', { field: this.title });
        if (!fits(answer, format) || !matches(answer, pattern)) {
            return example ? t('form.malformed_example', { example }) : t('form.malformed', { field: this.title });
        }
        return null;
    }

    /** Shows or clears the error of this field. */
    mark(problem) {
        this.isMarked = true;
        this.error.textContent = problem ?? '';
        this.element.classList.toggle('is-wrong', problem !== null);
        if (problem === null) this.input.removeAttribute('aria-invalid');
        else this.input.setAttribute('aria-invalid', 'true');
    }

    #makeInput() {
        const { enum: choices, secret, example, default_value: preset, optional, format, description } = this.question;
        const describedBy = [description && `${this.id}-hint`, `${this.id}-error`].filter(Boolean).join(' ');
        const common = { id: this.id, name: this.question.name, 'aria-describedby': describedBy, required: !optional };
        if (choices?.length) {
            const options = choices.map((choice) => h('option', { value: choice, selected: choice === preset }, choice));
            const none = h('option', { value: '' }, t('form.choose'));
            return h('select', { ...common, class: 'input' }, none, ...options);
        }
        const text = {
            ...common,
            class: secret ? 'input is-secret' : 'input',
            autocomplete: 'off',
            autocapitalize: 'none',
            spellcheck: 'false',
            placeholder: secret || !example ? null : t('form.example', { example }),
            // Password managers would store these values as a password for this page.
            'data-1p-ignore': true,
            'data-lpignore': 'true',
        };
        // A single-line field would remove the line breaks of a multi-line key.
        if (secret && isLong(this.question)) return h('textarea', { ...text, rows: 4 });
        const type = secret ? 'password' : format === 'email' ? 'email' : format === 'uri' ? 'url' : 'text';
        return h('input', { ...text, type, value: preset ?? '' });
    }

    #makeElement() {
        const { description, optional, prefix, suffix, secret, enum: choices } = this.question;
        const label = h('label', { for: this.id }, this.title);
        if (optional) label.append(' ', h('span', { class: 'optional' }, t('form.optional')));
        const parts = [
            prefix && h('span', { class: 'affix' }, prefix),
            this.input,
            suffix && h('span', { class: 'affix' }, suffix),
            secret && !choices?.length && this.#makeReveal(),
            choices?.length && icon('next'),
        ];
        return h(
            'div',
            { class: 'field' },
            label,
            h('div', { class: choices?.length ? 'control is-choice' : 'control' }, ...parts),
            description && h('p', { class: 'hint', id: `${this.id}-hint` }, description),
            this.error,
        );
    }

    /** The button that shows and hides the value. */
    #makeReveal() {
        const button = h('button', { type: 'button', class: 'reveal', 'aria-pressed': 'false', 'aria-controls': this.id });
        const update = (isShown) => {
            button.setAttribute('aria-pressed', String(isShown));
            button.setAttribute('aria-label', t('form.show', { field: this.title }));
            button.replaceChildren(icon(isShown ? 'hide' : 'show'));
            if (this.input.tagName === 'INPUT') this.input.type = isShown ? 'text' : 'password';
            this.input.classList.toggle('is-shown', isShown);
        };
        button.addEventListener('click', () => update(button.getAttribute('aria-pressed') === 'false'));
        update(false);
        return button;
    }
}

/** All questions of one provider. */
export class Form {
    constructor(questions) {
        // Hidden questions have fixed answers, which are sent without asking.
        this.given = questions.filter((question) => question.hidden);
        this.fields = questions.filter((question) => !question.hidden).map((question) => new Field(question));
        this.elements = this.fields.map((field) => field.element);
    }

    /** Marks all errors and focuses the first. Returns whether all fields are valid. */
    check() {
        for (const field of this.fields) field.mark(field.problem());
        const first = this.fields.find((field) => field.element.classList.contains('is-wrong'));
        first?.input.focus();
        return !first;
    }

    /** Marks the fields that the service rejected. Returns whether there were any. */
    markRefused(mistakes) {
        const named = ({ path = [] }) => this.fields.find(({ question }) => path.at(-1) === question.name);
        const refused = mistakes.map((mistake) => [named(mistake), mistake.message]).filter(([field]) => field);
        for (const [field, message] of refused) field.mark(message);
        refused[0]?.[0].input.focus();
        return refused.length > 0;
    }

    /** Returns the answers for `params` or `credentials`, without empty ones. */
    answers(into) {
        const given = this.given.map((question) => [question, question.default_value ?? '']);
        const typed = this.fields.map((field) => [field.question, field.answer]).filter(([, answer]) => answer !== '');
        const all = [...given, ...typed].filter(([question]) => question.into === into);
        return Object.fromEntries(all.map(([question, answer]) => [question.name, answer]));
    }
}

function fits(answer, format) {
    return format === 'uri' ? URL.canParse(answer) : (FORMATS[format]?.test(answer) ?? true);
}

/** Patterns are written for the service. If the browser cannot parse one, only the service checks it. */
function matches(answer, pattern) {
    if (!pattern) return true;
    try {
        return new RegExp(`^(?:${pattern})$`, 'u').test(answer);
    } catch {
        return true;
    }
}

function isLong({ name, example = '', pattern = '' }) {
    return /private_?key|certificate|pem$/i.test(name) || `${example}${pattern}`.includes('-----BEGIN');
}
