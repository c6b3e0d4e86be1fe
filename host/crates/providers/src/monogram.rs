//! Pictures for providers, made of name and colour. They use no trademarks and need no downloads.

use maud::{Markup, PreEscaped, html};

use super::Provider;

/// Returns a square with rounded corners, as SVG without scripts and external references.
pub fn monogram(provider: &Provider) -> String {
    let background = provider.color.as_deref().and_then(Color::parse).unwrap_or_else(|| {
        // Providers without a colour are distinguishable, too.
        let digest = blake3::hash(provider.name.as_str().as_bytes());
        PALETTE[usize::from(digest.as_bytes()[0]) % PALETTE.len()]
    });
    let letters = initials(&provider.display_name);
    let size = if letters.chars().count() > 1 { "26" } else { "32" };
    let svg: Markup = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64" role="img" aria-label=(provider.display_name) {
            rect width="64" height="64" rx="12" fill=(background.to_text()) {}
            text x="32" y="32" dy="0.36em" text-anchor="middle" fill=(background.readable_on_it().to_text())
                font-family="system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif" font-weight="600"
                font-size=(size) { (letters) }
        }
    };
    let PreEscaped(text) = svg;
    text
}

/// Colours that are dark enough for white letters.
const PALETTE: [Color; 8] = [
    Color(0x1f, 0x4e, 0x79),
    Color(0x7a, 0x2e, 0x5d),
    Color(0x2e, 0x6b, 0x3f),
    Color(0x8a, 0x3b, 0x12),
    Color(0x4b, 0x3f, 0x8f),
    Color(0x0f, 0x62, 0x6b),
    Color(0x6b, 0x4f, 0x0f),
    Color(0x45, 0x4a, 0x55),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Color(u8, u8, u8);

impl Color {
    /// Parses `#rrggbb`.
    fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('#').filter(|digits| digits.len() == 6 && digits.is_ascii())?;
        let part = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).ok();
        Some(Self(part(0)?, part(2)?, part(4)?))
    }

    fn to_text(self) -> String {
        format!("#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }

    /// Returns white or black, whichever has more contrast.
    fn readable_on_it(self) -> Self {
        let [white, black] = [Self(0xff, 0xff, 0xff), Self(0, 0, 0)];
        if self.contrast(white) >= self.contrast(black) { white } else { black }
    }

    /// Returns the contrast ratio of WCAG 2, from 1 to 21.
    fn contrast(self, other: Self) -> f64 {
        let (one, two) = (self.luminance(), other.luminance());
        (one.max(two) + 0.05) / (one.min(two) + 0.05)
    }

    fn luminance(self) -> f64 {
        let linear = |part: u8| {
            let part = f64::from(part) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(self.0) + 0.7152 * linear(self.1) + 0.0722 * linear(self.2)
    }
}

/// Returns the first letters of the first two words. Text in brackets is a note and not part of the name.
fn initials(name: &str) -> String {
    let plain = name.split('(').next().unwrap_or_default();
    let words = plain.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let letters: String = words.take(2).filter_map(|word| word.chars().next()).collect();
    if letters.is_empty() { "?".to_owned() } else { letters.to_uppercase() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Catalogue;

    #[test]
    fn letters_are_readable_for_every_built_in_provider() {
        for provider in Catalogue::load(None).unwrap().list() {
            let background = provider.color.as_deref().and_then(Color::parse);
            assert_eq!(background.is_some(), provider.color.is_some(), "{}", provider.name);
            for color in background.into_iter().chain(PALETTE) {
                assert!(color.contrast(color.readable_on_it()) >= 4.5, "{}: {color:?}", provider.name);
            }
            let svg = monogram(&provider);
            assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>"), "{svg}");
        }
    }

    #[test]
    fn a_name_becomes_one_or_two_letters() {
        for (name, letters) in [
            ("HubSpot", "H"),
            ("Stripe (API key)", "S"),
            ("google drive", "GD"),
            ("Microsoft Teams for Work", "MT"),
            ("\u{e9}tude", "\u{c9}"),
            ("3CX", "3"),
            ("<>", "?"),
        ] {
            assert_eq!(initials(name), letters, "{name}");
        }
    }

    #[test]
    fn a_providers_name_is_escaped() {
        let mut provider = (*Catalogue::load(None).unwrap().list()[0]).clone();
        provider.display_name = "\"><script>alert(1)</script>".to_owned();
        provider.color = None;
        let svg = monogram(&provider);
        assert!(!svg.contains("<script"), "{svg}");
        assert!(svg.contains("aria-label=\"&quot;&gt;&lt;script&gt;"), "{svg}");
    }
}
