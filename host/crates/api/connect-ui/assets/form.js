// The questions of a provider as a form: asked as the catalogue words them, and checked as it says.

import { h, icon } from './dom.js';
import { t } from './i18n.js';

/** What the formats of the catalogue look like. */
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
        // A mistake that was shown goes as soon as it is mended; none is shown before the first attempt.
        this.input.addEventListener('input', () => this.isMarked && this.mark(this.problem()));
    }

    get title() {
        return this.question.wording ? t(`ask.${this.question.wording}`) : this.question.title || this.question.name;
    }

    /** The answer, without the prefix and suffix that were pasted along. */
    get answer() {
        const { prefix = '', suffix = '' } = this.question;
        let text = this.input.value.trim();
        if (prefix && text.startsWith(prefix)) text = text.slice(prefix.length).replace(/\/+$/, '');
        if (suffix && text.endsWith(suffix)) text = text.slice(0, -suffix.length);
        return text;
    }

    /** What is wrong with the answer; `null` if it is right. */
    problem() {
        const { optional, pattern, format, example } = this.question;
        const answer = this.answer;
        if (answer === '') return optional ? null : t('form.required', { field: this.title });
        if (!fits(answer, format) || !matches(answer, pattern)) {
            return example ? t('form.malformed_example', { example }) : t('form.malformed', { field: this.title });
        }
        return null;
    }

    /** Shows a mistake, or that there is none any more. */
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
            // Password managers would keep what is not a password of this page.
            'data-1p-ignore': true,
            'data-lpignore': 'true',
        };
        // A key of several lines does not survive a field of one.
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

    /** Shows and hides what was typed. */
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
        // What has an answer already that nobody is to change is sent along without being asked.
        this.given = questions.filter((question) => question.hidden);
        this.fields = questions.filter((question) => !question.hidden).map((question) => new Field(question));
        this.elements = this.fields.map((field) => field.element);
    }

    /** Marks every mistake and goes to the first. Whether there is none. */
    check() {
        for (const field of this.fields) field.mark(field.problem());
        const first = this.fields.find((field) => field.element.classList.contains('is-wrong'));
        first?.input.focus();
        return !first;
    }

    /** Marks the fields that the service complained about. Whether there were any. */
    markRefused(mistakes) {
        const named = ({ path = [] }) => this.fields.find(({ question }) => path.at(-1) === question.name);
        const refused = mistakes.map((mistake) => [named(mistake), mistake.message]).filter(([field]) => field);
        for (const [field, message] of refused) field.mark(message);
        refused[0]?.[0].input.focus();
        return refused.length > 0;
    }

    /** The answers for `params` or `credentials`, without those that were left empty. */
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

/** Patterns are written for the service; one that the browser cannot read is left to the service. */
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
