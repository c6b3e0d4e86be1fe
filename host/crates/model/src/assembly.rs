//! Assembles the canonical form of a value from the forms of its parts.
//!
//! As long as a text is already canonical, its form is the text itself and nothing is copied. Other parts (keys out
//! of order, spaces, needless escapes) are written into a buffer from the inside out. When an object ends, its
//! members are in the text or in the buffer and only have to be sorted.

use std::ops::Range;

use super::strings;

pub(super) struct Assembly<'t> {
    text: &'t [u8],
    written: Vec<u8>,
    /// Members of the objects that are not complete yet.
    members: Vec<Member>,
    /// Elements of the arrays that are not complete yet.
    elements: Vec<Piece>,
}

/// The place of a value's canonical form.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    start: usize,
    end: usize,
    source: Source,
}

/// As wide as the numbers next to it. With padding, copying pieces stalls the processor.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
enum Source {
    Text,
    Written,
}

/// The start of the parts of an array or object.
pub(super) struct Level {
    written: usize,
    members: usize,
    elements: usize,
}

#[derive(Clone, Copy)]
struct Member {
    /// The first eight bytes of the key, so that most comparisons compare one number.
    order: u64,
    key: Piece,
    value: Piece,
}

impl Piece {
    #[inline(always)]
    pub(super) fn is_text(self) -> bool {
        self.source == Source::Text
    }
}

impl<'t> Assembly<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text: text.as_bytes(), written: Vec::new(), members: Vec::new(), elements: Vec::new() }
    }

    /// Removes all pieces.
    pub(super) fn clear(&mut self) {
        self.written.clear();
        self.members.clear();
        self.elements.clear();
    }

    #[inline]
    pub(super) fn bytes(&self, piece: Piece) -> &[u8] {
        &self.source(piece)[piece.start..piece.end]
    }

    /// Returns a string without its quotes.
    #[inline]
    pub(super) fn content(&self, string: Piece) -> &[u8] {
        &self.source(string)[string.start + 1..string.end - 1]
    }

    /// Adds a canonical part of the text.
    #[inline(always)]
    pub(super) fn text(&self, range: Range<usize>) -> Piece {
        Piece { start: range.start, end: range.end, source: Source::Text }
    }

    /// Adds a string that has needless escapes. Returns false if it contains half of a surrogate pair.
    pub(super) fn rewritten_string(&mut self, content: &str) -> (Piece, bool) {
        let start = self.written.len();
        let is_unicode = strings::rewrite_string(content, &mut self.written);
        (self.written_from(start), is_unicode)
    }

    /// Adds an integer as a string.
    pub(super) fn quoted(&mut self, digits: &str) -> Piece {
        let start = self.written.len();
        for part in ["\"", digits, "\""] {
            self.written.extend_from_slice(part.as_bytes());
        }
        self.written_from(start)
    }

    #[inline]
    pub(super) fn begin(&self) -> Level {
        Level { written: self.written.len(), members: self.members.len(), elements: self.elements.len() }
    }

    #[inline]
    pub(super) fn add_element(&mut self, element: Piece) {
        self.elements.push(element);
    }

    /// Returns true if the key sorts after the previous one.
    #[inline]
    pub(super) fn add_member(&mut self, level: &Level, key: Piece, value: Piece) -> bool {
        let order = self.order(key);
        let last = self.members[level.members..].last();
        let is_sorted = last.is_none_or(|last| {
            last.order < order || (last.order == order && self.content(last.key) < self.content(key))
        });
        self.members.push(Member { order, key, value });
        is_sorted
    }

    /// Ends an array. `text` is its range in the text if it is already canonical.
    pub(super) fn end_array(&mut self, level: Level, text: Option<Range<usize>>) -> Piece {
        let piece = match text {
            Some(range) => self.text(range),
            None => self.write_array(&level),
        };
        self.elements.truncate(level.elements);
        piece
    }

    /// Ends an object. `text` is its range in the text if it is already canonical.
    pub(super) fn end_object(&mut self, level: Level, text: Option<Range<usize>>) -> Piece {
        let piece = match text {
            Some(range) => self.text(range),
            None => self.write_object(&level),
        };
        self.members.truncate(level.members);
        piece
    }

    fn write_array(&mut self, level: &Level) -> Piece {
        let form = self.written.len();
        self.written.push(b'[');
        for index in level.elements..self.elements.len() {
            if index > level.elements {
                self.written.push(b',');
            }
            self.copy(self.elements[index]);
        }
        self.written.push(b']');
        self.replace(level.written, form)
    }

    /// Writes the members sorted by key. The last member of equal keys is used.
    fn write_object(&mut self, level: &Level) -> Piece {
        self.sort_members(level);
        let form = self.written.len();
        self.written.push(b'{');
        for index in level.members..self.members.len() {
            let Member { order, key, value } = self.members[index];
            let next = self.members.get(index + 1);
            if next.is_some_and(|next| next.order == order && self.content(next.key) == self.content(key)) {
                continue;
            }
            if self.written.len() > form + 1 {
                self.written.push(b',');
            }
            if key.is_text() && value.is_text() && value.start == key.end + 1 {
                self.copy(Piece { end: value.end, ..key });
            } else {
                self.copy(key);
                self.written.push(b':');
                self.copy(value);
            }
        }
        self.written.push(b'}');
        self.replace(level.written, form)
    }

    fn sort_members(&mut self, level: &Level) {
        let mut members = std::mem::take(&mut self.members);
        members[level.members..]
            .sort_by(|a, b| a.order.cmp(&b.order).then_with(|| self.content(a.key).cmp(self.content(b.key))));
        self.members = members;
    }

    #[inline]
    fn copy(&mut self, piece: Piece) {
        match piece.source {
            Source::Text => self.written.extend_from_slice(&self.text[piece.start..piece.end]),
            Source::Written => self.written.extend_from_within(piece.start..piece.end),
        }
    }

    /// Moves the form at the end of the buffer over the parts that it consists of. The buffer therefore stays about
    /// as long as the text, at any depth.
    fn replace(&mut self, parts: usize, form: usize) -> Piece {
        if parts < form {
            self.written.copy_within(form.., parts);
            self.written.truncate(parts + self.written.len() - form);
        }
        self.written_from(parts)
    }

    /// Returns the start of the key as a number that sorts like its bytes.
    #[inline]
    fn order(&self, key: Piece) -> u64 {
        let source = self.source(key);
        let length = (key.end - key.start - 2).min(8);
        let mut first = [0; 8];
        match source[key.start + 1..].first_chunk() {
            Some(chunk) => first = *chunk,
            None => first[..length].copy_from_slice(&source[key.start + 1..][..length]),
        }
        let beyond = u64::MAX.checked_shr(8 * length as u32).unwrap_or(0);
        u64::from_be_bytes(first) & !beyond
    }

    #[inline(always)]
    fn source(&self, piece: Piece) -> &[u8] {
        match piece.source {
            Source::Text => self.text,
            Source::Written => &self.written,
        }
    }

    #[inline]
    fn written_from(&self, start: usize) -> Piece {
        Piece { start, end: self.written.len(), source: Source::Written }
    }
}
