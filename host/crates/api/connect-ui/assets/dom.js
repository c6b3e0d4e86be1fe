// Creates elements. Text is never parsed as markup, here or elsewhere on this page.

const SVG = 'http://www.w3.org/2000/svg';

/** Paths in a view box of 24 by 24. */
const ICONS = {
    back: 'M15 5l-7 7 7 7',
    close: 'M6 6l12 12M18 6L6 18',
    next: 'M9 5l7 7-7 7',
    search: 'M11 4a7 7 0 1 1 0 14 7 7 0 0 1 0-14zM16.2 16.2L20.5 20.5',
    show: 'M2.5 12S6 5.5 12 5.5 21.5 12 21.5 12 18 18.5 12 18.5 2.5 12 2.5 12zM12 9a3 3 0 1 1 0 6 3 3 0 0 1 0-6z',
    hide: 'M4 4l16 16M9.9 5.8A9 9 0 0 1 12 5.5c6 0 9.5 6.5 9.5 6.500a17 17 0 0 1-2.7 3.400M6.3 7.600A16 16 0 0 0 2.5 12S6 18.5 12 18.500a9 9 0 0 0 4-.9',
    done: 'M5 12.5l4.5 4.500L19 7.5',
    warning: 'M12 8v5M12 16.500v.1M12 3.500l9.5 17h-19z',
    clock: 'M12 3.500a8.5 8.5 0 1 1 0 17 8.5 8.5 0 0 1 0-17zM12 7.500V12l3 2',
    external: 'M9 5H5v14h14v-4M13 5h6v6M19 5l-8.5 8.5',
    lock: 'M6 11h12v9H6zM8.5 11V8a3.5 3.5 0 0 1 7 0v3',
    window: 'M4 6h16v13H4zM4 10h16',
};

/**
 * Creates an element. Functions in `attributes` are listeners (`onclick`), `true` sets an attribute without a value, and
 * `false`, `null` and `undefined` omit the attribute. Such children are omitted, too.
 */
export function h(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
        if (typeof value === 'function') element.addEventListener(name.slice(2), value);
        else if (value === true) element.setAttribute(name, '');
        else if (value !== false && value != null) element.setAttribute(name, value);
    }
    append(element, children);
    return element;
}

function append(element, children) {
    for (const child of children.flat()) {
        if (child !== false && child != null) element.append(child);
    }
}

/** A decorative icon, hidden from screen readers. The text beside it has the meaning. */
export function icon(name) {
    const svg = document.createElementNS(SVG, 'svg');
    svg.setAttribute('viewBox', '0 0 24 24');
    svg.setAttribute('class', 'icon');
    svg.setAttribute('aria-hidden', 'true');
    const path = document.createElementNS(SVG, 'path');
    path.setAttribute('d', ICONS[name]);
    svg.append(path);
    return svg;
}
