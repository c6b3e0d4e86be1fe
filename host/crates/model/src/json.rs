//! A scanner for JSON text (RFC 8259) that reports places and builds no values.

/// Maximum nesting of arrays and objects. Readers of records have the same limit.
pub(super) const MAX_DEPTH: usize = 127;

/// Why and where a text is not JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not JSON: expected {expected} at byte {at}")]
pub struct Malformed {
    /// Offset in bytes from the start of the text.
    pub at: usize,
    pub expected: &'static str,
}

/// How a string is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writing {
    /// Without escapes, so that content and text have the same bytes.
    Plain,
    /// With escapes, all of them in the form that [`super::canonical`] uses.
    Canonical,
    /// With at least one escape that can be written differently.
    Free,
}

/// Reads a text from left to right. Between two tokens, it is at the first byte of the next one.
pub(super) struct Scanner<'t> {
    pub(super) text: &'t str,
    bytes: &'t [u8],
    pub(super) at: usize,
}

impl<'t> Scanner<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, bytes: text.as_bytes(), at: 0 }
    }

    /// Returns the current byte. At the end of the text, it is NUL, which starts no token.
    #[inline(always)]
    pub(super) fn peek(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    /// Skips spaces and line ends. Returns true if there were any.
    #[inline(always)]
    pub(super) fn skip_space(&mut self) -> bool {
        if self.peek() > b' ' {
            return false;
        }
        let start = self.at;
        while matches!(self.peek(), b' ' | b'\n' | b'\r' | b'\t') {
            self.at += 1;
        }
        self.at > start
    }

    #[inline(always)]
    pub(super) fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), Malformed> {
        if self.peek() != byte {
            return Err(self.malformed(expected));
        }
        self.at += 1;
        Ok(())
    }

    #[cold]
    pub(super) fn malformed(&self, expected: &'static str) -> Malformed {
        Malformed { at: self.at, expected }
    }

    /// Checks that only spaces follow the value.
    pub(super) fn finish(&mut self) -> Result<(), Malformed> {
        self.skip_space();
        if self.at < self.bytes.len() {
            return Err(self.malformed("the end of the text"));
        }
        Ok(())
    }

    /// Skips a string with its quotes.
    #[inline]
    pub(super) fn string(&mut self) -> Result<Writing, Malformed> {
        self.at += 1;
        let mut writing = Writing::Plain;
        loop {
            self.skip_plain();
            match self.peek() {
                b'"' => {
                    self.at += 1;
                    return Ok(writing);
                }
                b'\\' => {
                    let form = self.escape()?;
                    if writing != Writing::Free {
                        writing = form;
                    }
                }
                _ if self.at >= self.bytes.len() => return Err(self.malformed("the string's closing quote")),
                _ => return Err(self.malformed("an escape instead of a raw control character")),
            }
        }
    }

    /// Skips a number. Returns true if it is written as an integer.
    #[inline]
    pub(super) fn number(&mut self) -> Result<bool, Malformed> {
        if self.peek() == b'-' {
            self.at += 1;
        }
        if self.peek() == b'0' {
            self.at += 1;
        } else {
            self.digits()?;
        }
        let mut integer = true;
        if self.peek() == b'.' {
            integer = false;
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), b'e' | b'E') {
            integer = false;
            self.at += 1;
            if matches!(self.peek(), b'+' | b'-') {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(integer)
    }

    #[inline]
    pub(super) fn literal(&mut self, literal: &'static str) -> Result<(), Malformed> {
        if !self.bytes[self.at..].starts_with(literal.as_bytes()) {
            return Err(self.malformed("a value"));
        }
        self.at += literal.len();
        Ok(())
    }

    #[inline(always)]
    fn digits(&mut self) -> Result<(), Malformed> {
        let start = self.at;
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        if self.at == start { Err(self.malformed("a digit")) } else { Ok(()) }
    }

    /// Moves to the next quote, backslash or control character, eight bytes at a time.
    #[inline(always)]
    fn skip_plain(&mut self) {
        while let Some(chunk) = self.bytes[self.at..].first_chunk::<8>() {
            let stops = stops(u64::from_le_bytes(*chunk));
            if stops != 0 {
                self.at += stops.trailing_zeros() as usize / 8;
                return;
            }
            self.at += 8;
        }
        while let Some(byte) = self.bytes.get(self.at) {
            if *byte < b' ' || matches!(byte, b'"' | b'\\') {
                return;
            }
            self.at += 1;
        }
    }

    fn escape(&mut self) -> Result<Writing, Malformed> {
        self.at += 1;
        match self.peek() {
            b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't' => {
                self.at += 1;
                Ok(Writing::Canonical)
            }
            b'/' => {
                self.at += 1;
                Ok(Writing::Free)
            }
            b'u' => {
                self.at += 1;
                let start = self.at;
                for _ in 0..4 {
                    if !self.peek().is_ascii_hexdigit() {
                        return Err(self.malformed("a hexadecimal digit"));
                    }
                    self.at += 1;
                }
                let canonical = super::strings::is_canonical_hex(&self.bytes[start..self.at]);
                Ok(if canonical { Writing::Canonical } else { Writing::Free })
            }
            _ => Err(self.malformed("one of `\"\\/bfnrtu` after the backslash")),
        }
    }
}

/// Sets the highest bit of each byte that is a quote, a backslash or a control character. Only the lowest set bit
/// is reliable.
#[inline(always)]
fn stops(word: u64) -> u64 {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    let is_zero = |word: u64| word.wrapping_sub(ONES) & !word;
    let quote = is_zero(word ^ (ONES * u64::from(b'"')));
    let backslash = is_zero(word ^ (ONES * u64::from(b'\\')));
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    (quote | backslash | control) & HIGH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_ends_exactly_at_special_bytes() {
        for byte in 0..=0x7f_u8 {
            for place in 0..20 {
                let mut bytes = vec![b'x'; 24];
                bytes[place] = byte;
                let text = String::from_utf8(bytes).unwrap();
                let mut scanner = Scanner::new(&text);
                scanner.skip_plain();
                let is_stop = byte < b' ' || byte == b'"' || byte == b'\\';
                assert_eq!(scanner.at, if is_stop { place } else { 24 }, "byte {byte:#x} at {place}");
            }
        }
    }

    #[test]
    fn strings_report_how_they_are_written() {
        let writing = |text: &str| Scanner::new(text).string().unwrap();
        assert_eq!(writing(r#""café 🎉""#), Writing::Plain);
        assert_eq!(writing(r#""a\n\"\u001f""#), Writing::Canonical);
        assert_eq!(writing(r#""a\u001F""#), Writing::Free);
        assert_eq!(writing(r#""a\u000a""#), Writing::Free);
        assert_eq!(writing(r#""a\/b\n""#), Writing::Free);
    }
}
