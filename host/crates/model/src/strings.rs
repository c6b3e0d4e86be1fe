//! Strings of JSON texts: their canonical form and their content.

use std::borrow::Cow;

/// A part of a string's content.
enum Part<'t> {
    Text(&'t str),
    Char(char),
    /// Half of a surrogate pair, which is not a character.
    Half(u16),
}

/// Appends a string in canonical form. `content` is the text between the quotes of a well-formed string. Returns
/// false if it contains half of a surrogate pair, which is preserved as an escape although it is not Unicode.
pub(super) fn rewrite_string(content: &str, out: &mut Vec<u8>) -> bool {
    let mut is_text = true;
    out.push(b'"');
    for_each_part(content, |part| match part {
        Part::Text(text) => out.extend_from_slice(text.as_bytes()),
        Part::Char(char) => push_char(char, out),
        Part::Half(half) => {
            is_text = false;
            out.extend_from_slice(format!("\\u{half:04x}").as_bytes());
        }
    });
    out.push(b'"');
    is_text
}

/// Replaces each half of a surrogate pair in well-formed JSON with the replacement character. JavaScript produces
/// such halves by cutting a text within an emoji.
pub fn with_whole_characters(json: &str) -> String {
    let mut whole = Vec::with_capacity(json.len());
    // Escapes occur only in strings.
    for_each_part(json, |part| match part {
        Part::Text(text) => whole.extend_from_slice(text.as_bytes()),
        Part::Char(char) => push_char(char, &mut whole),
        Part::Half(_) => push_char(char::REPLACEMENT_CHARACTER, &mut whole),
    });
    String::from_utf8(whole).expect("all parts are UTF-8")
}

/// Returns a text as the content of a JSON string in canonical form.
pub(super) fn escape(text: &str) -> Vec<u8> {
    let mut content = Vec::with_capacity(text.len());
    text.chars().for_each(|char| push_char(char, &mut content));
    content
}

/// Returns the unescaped text of a string. `content` is the text between its quotes.
pub(super) fn unescape(content: &str) -> Cow<'_, str> {
    if !content.contains('\\') {
        return Cow::Borrowed(content);
    }
    let mut text = String::with_capacity(content.len());
    for_each_part(content, |part| match part {
        Part::Text(part) => text.push_str(part),
        Part::Char(char) => text.push(char),
        Part::Half(_) => text.push(char::REPLACEMENT_CHARACTER),
    });
    Cow::Owned(text)
}

/// Whether `\u` with these four digits is the canonical escape of its character. Only control characters without a
/// short escape are written in this form.
pub(super) fn is_canonical_hex(digits: &[u8]) -> bool {
    match digits {
        [b'0', b'0', b'0', last] => matches!(last, b'0'..=b'7' | b'b' | b'e' | b'f'),
        [b'0', b'0', b'1', last] => matches!(last, b'0'..=b'9' | b'a'..=b'f'),
        _ => false,
    }
}

fn push_char(char: char, out: &mut Vec<u8>) {
    let short = match char {
        '"' => b'"',
        '\\' => b'\\',
        '\u{8}' => b'b',
        '\u{c}' => b'f',
        '\n' => b'n',
        '\r' => b'r',
        '\t' => b't',
        '\0'..='\u{1f}' => return out.extend_from_slice(format!("\\u{:04x}", char as u32).as_bytes()),
        _ => return out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
    };
    out.extend_from_slice(&[b'\\', short]);
}

fn for_each_part<'t>(content: &'t str, mut each: impl FnMut(Part<'t>)) {
    let mut rest = content;
    while let Some(backslash) = rest.find('\\') {
        if backslash > 0 {
            each(Part::Text(&rest[..backslash]));
        }
        let (part, length) = first_escape(&rest[backslash..]);
        each(part);
        rest = &rest[backslash + length..];
    }
    if !rest.is_empty() {
        each(Part::Text(rest));
    }
}

/// Parses the escape, or the pair of surrogate escapes, at the start of `text`. Returns its length as well.
fn first_escape(text: &str) -> (Part<'static>, usize) {
    let char = match text.as_bytes()[1] {
        b'u' => {
            let first = hex(text, 0);
            let second = if text[6..].starts_with("\\u") { hex(text, 6) } else { 0 };
            let mut decoded = char::decode_utf16([first, second]);
            return match decoded.next() {
                Some(Ok(char)) => (Part::Char(char), 6 * char.len_utf16()),
                _ => (Part::Half(first), 6),
            };
        }
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        other => other as char,
    };
    (Part::Char(char), 2)
}

/// Returns the value of the four digits of the `\u` escape at `at`.
fn hex(text: &str, at: usize) -> u16 {
    u16::from_str_radix(&text[at + 2..at + 6], 16).expect("the scanner has checked the digits")
}
