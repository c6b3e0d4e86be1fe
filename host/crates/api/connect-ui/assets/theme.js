// The light and dark themes, with a configured color that stays readable in both.

const DEFAULT_COLOR = '#2f5bea';
/** The panel's background in each theme, as in style.css. */
const SURFACES = { light: '#ffffff', dark: '#17191f' };
/** WCAG 2.2, 1.4.3: contrast of text. */
const READABLE = 4.5;

const systemIsDark = window.matchMedia('(prefers-color-scheme: dark)');
let chosen = 'system';
let colors = { light: DEFAULT_COLOR, dark: DEFAULT_COLOR };

systemIsDark.addEventListener('change', apply);

/** Sets `light`, `dark` or `system`. Ignores other values. */
export function setTheme(theme) {
    if (['light', 'dark', 'system'].includes(theme)) chosen = theme;
    apply();
}

/** Applies the colors of `connectUISettings`, which have different names for older and newer clients. */
export function setColors(settings) {
    const of = (theme) => toHex(settings.theme?.[theme]?.primary ?? settings.primaryColor);
    colors = { light: of('light'), dark: of('dark') };
    apply();
}

function apply() {
    const theme = chosen === 'system' ? (systemIsDark.matches ? 'dark' : 'light') : chosen;
    const root = document.documentElement;
    const color = colors[theme];
    root.dataset.theme = theme;
    root.style.setProperty('--primary', color);
    root.style.setProperty('--on-primary', contrast(color, '#ffffff') >= contrast(color, '#10131a') ? '#ffffff' : '#10131a');
    root.style.setProperty('--accent', readableOn(color, SURFACES[theme]));
}

/** Returns the color if it is readable on the surface, or the nearest lighter or darker one that is. */
function readableOn(color, surface) {
    const target = luminance(surface) > 0.5 ? 0 : 255;
    for (let share = 0; share <= 1; share += 0.05) {
        const mixed = mix(color, target, share);
        if (contrast(mixed, surface) >= READABLE) return mixed;
    }
    return target === 0 ? '#000000' : '#ffffff';
}

function mix(color, target, share) {
    const parts = channels(color).map((channel) => Math.round(channel + (target - channel) * share));
    return `#${parts.map((part) => part.toString(16).padStart(2, '0')).join('')}`;
}

function contrast(one, other) {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
}

/** The relative luminance of WCAG. */
function luminance(color) {
    const [red, green, blue] = channels(color).map((channel) => {
        const share = channel / 255;
        return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function channels(hex) {
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/** Converts a CSS color to `#rrggbb`. Returns the default color for other values. */
function toHex(color) {
    const context = document.createElement('canvas').getContext('2d');
    context.fillStyle = DEFAULT_COLOR;
    context.fillStyle = color ?? DEFAULT_COLOR;
    return /^#[0-9a-f]{6}$/.test(context.fillStyle) ? context.fillStyle : DEFAULT_COLOR;
}
