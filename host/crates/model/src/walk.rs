//! A single walk over JSON text that checks syntax and shape and prepares the canonical form.

use std::ops::Range;

use super::assembly::{Assembly, Piece};
use super::formats;
use super::json::{MAX_DEPTH, Malformed, Scanner, Writing};
use super::problem::{Mark, Problem, Problems};
use super::shape::{Expected, Invalid, Kind, ObjectShape, Parts, Shape};
use super::strings::unescape;

pub(super) struct Walk<'t, 's> {
    pub(super) scanner: Scanner<'t>,
    pub(super) assembly: Assembly<'t>,
    pub(super) problems: Problems,
    parts: &'s Parts,
    root: Expected,
    depth: usize,
    /// Which declared fields were found, for the objects that are not complete yet.
    seen: Vec<bool>,
    /// For each declared field of all objects, the field that followed it in the previous object. Objects of a
    /// batch usually have the same order, so a key is looked up there first.
    followers: Vec<usize>,
}

/// The information that the walk collects about a record.
pub(super) struct Record<'k> {
    /// The member with this key is removed.
    metadata_key: &'k str,
    pub(super) id: Option<IdText>,
    /// The changes to the text before it is stored, from left to right.
    pub(super) edits: Vec<Edit>,
}

/// The value of the last `id`.
pub(super) enum IdText {
    /// The content between the quotes.
    String(Range<usize>),
    Integer(Range<usize>),
    Other(&'static str),
}

pub(super) enum Edit {
    Remove(Range<usize>),
    Quote(Range<usize>),
}

impl<'k> Record<'k> {
    pub(super) fn new(metadata_key: &'k str) -> Self {
        Self { metadata_key, id: None, edits: Vec::new() }
    }
}

impl<'t, 's> Walk<'t, 's> {
    pub(super) fn new(text: &'t str, shape: &'s Shape) -> Self {
        Self {
            scanner: Scanner::new(text),
            assembly: Assembly::new(text),
            problems: Problems::default(),
            parts: &shape.parts,
            root: shape.root,
            depth: 0,
            seen: Vec::new(),
            followers: shape.parts.file_order(),
        }
    }

    /// Walks over a text that is one value.
    pub(super) fn document(&mut self) -> Result<Piece, Malformed> {
        self.scanner.skip_space();
        let form = self.value(self.root)?;
        self.scanner.finish()?;
        Ok(form)
    }

    /// Walks over an object that is a record of the root's shape, `depth` levels down.
    pub(super) fn record(&mut self, record: &mut Record<'_>, depth: usize) -> Result<Piece, Malformed> {
        self.begin(depth);
        record.id = None;
        record.edits.clear();
        let start = self.scanner.at;
        let metadata_key = record.metadata_key;
        let shape = self.object_shape(self.root);
        let form = self.object(shape, Some(record))?;
        if let Kind::Schema(place) = self.root.kind
            && !self.problems.any_since(Mark::START)
        {
            let text = &self.scanner.text[start..self.scanner.at];
            let problems = self.parts.schemas[place].check_record(text, metadata_key);
            problems.into_iter().for_each(|problem| self.problems.add(problem));
        }
        Ok(form)
    }

    /// Walks over a value that should be a record but is not, and returns its type.
    pub(super) fn non_record(&mut self, depth: usize) -> Result<&'static str, Malformed> {
        self.begin(depth);
        let given = type_at(self.scanner.peek());
        self.value(Expected::ANY)?;
        Ok(given)
    }

    fn begin(&mut self, depth: usize) {
        self.depth = depth;
        self.assembly.clear();
        self.problems.clear();
    }

    fn value(&mut self, expected: Expected) -> Result<Piece, Malformed> {
        if let Kind::Schema(place) = expected.kind {
            return self.schema_value(place, expected.nullable);
        }
        match self.scanner.peek() {
            b'"' => self.string(expected),
            b'{' => {
                let shape = self.object_shape(expected);
                self.object(shape, None)
            }
            b'[' => self.array(expected),
            b'-' | b'0'..=b'9' => self.number(expected),
            b't' => self.literal("true", expected.kind == Kind::Boolean, expected),
            b'f' => self.literal("false", expected.kind == Kind::Boolean, expected),
            b'n' => self.literal("null", expected.nullable, expected),
            _ => Err(self.scanner.malformed("a value")),
        }
    }

    fn schema_value(&mut self, place: usize, nullable: bool) -> Result<Piece, Malformed> {
        let start = self.scanner.at;
        let mark = self.problems.mark();
        let form = self.value(Expected::ANY)?;
        let text = &self.scanner.text[start..self.scanner.at];
        let is_null = nullable && text == "null";
        if !is_null && !self.problems.any_since(mark) {
            let problems = self.parts.schemas[place].check(text);
            problems.into_iter().for_each(|problem| self.problems.add(problem));
        }
        Ok(form)
    }

    fn literal(&mut self, literal: &'static str, fits: bool, expected: Expected) -> Result<Piece, Malformed> {
        let start = self.scanner.at;
        if !fits && expected.kind != Kind::Any {
            self.mismatch(expected, type_at(self.scanner.peek()));
        }
        self.scanner.literal(literal)?;
        Ok(self.assembly.text(start..self.scanner.at))
    }

    fn number(&mut self, expected: Expected) -> Result<Piece, Malformed> {
        let start = self.scanner.at;
        let is_plain = self.scanner.number()?;
        let fits = match expected.kind {
            Kind::Number | Kind::Any => true,
            Kind::Integer => is_plain || formats::is_integer(&self.scanner.text[start..self.scanner.at]),
            _ => false,
        };
        if !fits {
            self.mismatch(expected, if is_plain { "integer" } else { "number" });
        }
        Ok(self.assembly.text(start..self.scanner.at))
    }

    fn string(&mut self, expected: Expected) -> Result<Piece, Malformed> {
        let start = self.scanner.at;
        let form = self.raw_string()?;
        if matches!(expected.kind, Kind::String | Kind::Any) {
            return Ok(form);
        }
        let content = &self.scanner.text[start + 1..self.scanner.at - 1];
        let fits = match expected.kind {
            Kind::Date => formats::is_date(&unescape(content)),
            Kind::Datetime => formats::is_datetime(&unescape(content)),
            Kind::Enum(place) => self.parts.enums[place].accepts(self.assembly.content(form)),
            _ => {
                self.mismatch(expected, "string");
                return Ok(form);
            }
        };
        if !fits {
            self.mismatch(expected, "another string");
        }
        Ok(form)
    }

    /// A string that is a key or a value.
    #[inline]
    fn raw_string(&mut self) -> Result<Piece, Malformed> {
        let start = self.scanner.at;
        if self.scanner.string()? != Writing::Free {
            return Ok(self.assembly.text(start..self.scanner.at));
        }
        let content = &self.scanner.text[start + 1..self.scanner.at - 1];
        let (form, is_unicode) = self.assembly.rewritten_string(content);
        if !is_unicode {
            self.problems.add_half_a_pair();
        }
        Ok(form)
    }

    fn array(&mut self, expected: Expected) -> Result<Piece, Malformed> {
        let items = match expected.kind {
            Kind::Array(place) => self.parts.items[place],
            Kind::Any => Expected::ANY,
            _ => {
                self.mismatch(expected, "array");
                Expected::ANY
            }
        };
        let start = self.scanner.at;
        let level = self.assembly.begin();
        self.enter()?;
        let mut as_text = !self.scanner.skip_space();
        if self.scanner.peek() != b']' {
            for index in 0.. {
                let mark = self.problems.mark();
                let element = self.value(items)?;
                if self.problems.any_since(mark) {
                    self.problems.locate(mark, &index.to_string());
                }
                self.assembly.add_element(element);
                as_text &= element.is_text() & !self.scanner.skip_space();
                if self.scanner.peek() != b',' {
                    break;
                }
                self.scanner.at += 1;
                as_text &= !self.scanner.skip_space();
            }
        }
        self.scanner.expect(b']', "`,` or `]`")?;
        self.depth -= 1;
        Ok(self.assembly.end_array(level, as_text.then_some(start..self.scanner.at)))
    }

    /// Walks over an object. The scanner is at its opening brace.
    fn object(
        &mut self,
        shape: Option<&'s ObjectShape>,
        mut record: Option<&mut Record<'_>>,
    ) -> Result<Piece, Malformed> {
        let start = self.scanner.at;
        let level = self.assembly.begin();
        let mut fields = shape.map(|shape| Fields::begin(shape, &mut self.seen, self.problems.mark()));
        // The place of the comma before the member, unless it was removed with a previous member.
        let mut comma = None;
        self.enter()?;
        let mut as_text = !self.scanner.skip_space();
        if self.scanner.peek() != b'}' {
            loop {
                let member_start = self.scanner.at;
                let mut mark = self.problems.mark();
                if self.scanner.peek() != b'"' {
                    return Err(self.scanner.malformed("a key in double quotes"));
                }
                let key = self.raw_string()?;
                as_text &= key.is_text() & !self.scanner.skip_space();
                self.scanner.expect(b':', "`:` after the key")?;
                as_text &= !self.scanner.skip_space();

                let is_metadata = record.as_ref().is_some_and(|record| self.is_key(key, record.metadata_key));
                if is_metadata {
                    self.value(Expected::ANY)?;
                    self.problems.drop_since(mark);
                    as_text = false;
                } else {
                    let expected = fields.as_mut().map_or(Expected::ANY, |fields| self.field(fields, key));
                    // The problems of an earlier value of the same key may have been removed.
                    mark = mark.min(self.problems.mark());
                    let value = match &mut record {
                        Some(record) if self.is_key(key, "id") => self.id(record, expected)?,
                        _ => self.value(expected)?,
                    };
                    if self.problems.any_since(mark) {
                        let name = String::from_utf8_lossy(self.assembly.content(key));
                        self.problems.locate(mark, &unescape(&name));
                    }
                    as_text &= value.is_text() & self.assembly.add_member(&level, key, value);
                }
                let member_end = self.scanner.at;
                as_text &= !self.scanner.skip_space();
                let is_last = self.scanner.peek() != b',';
                match &mut record {
                    // The comma before the metadata is removed with it, or the one after it if there is none
                    // before.
                    Some(record) if is_metadata => {
                        let takes_next = comma.is_none() && !is_last;
                        let end = if takes_next { self.scanner.at + 1 } else { member_end };
                        record.edits.push(Edit::Remove(comma.unwrap_or(member_start)..end));
                        comma = (!takes_next).then_some(self.scanner.at);
                    }
                    _ => comma = Some(self.scanner.at),
                }
                if is_last {
                    break;
                }
                self.scanner.at += 1;
                as_text &= !self.scanner.skip_space();
            }
        }
        self.scanner.expect(b'}', "`,` or `}`")?;
        self.depth -= 1;
        if let Some(fields) = fields {
            self.end_fields(&fields, record.is_some());
        }
        Ok(self.assembly.end_object(level, as_text.then_some(start..self.scanner.at)))
    }

    /// Returns what is expected of the member with this key.
    #[inline]
    fn field(&mut self, fields: &mut Fields<'s>, key: Piece) -> Expected {
        let shape = fields.shape;
        let follower = &mut self.followers[shape.first_follower + fields.last];
        let key = self.assembly.content(key);
        let Some(place) = shape.find(key, *follower) else {
            if shape.strict {
                self.problems.add(Problem::here("is not declared, and the model is strict"));
            }
            return Expected::ANY;
        };
        *follower = place;
        fields.last = place + 1;
        let field = &shape.fields[place];
        let seen = &mut self.seen[fields.first_seen + place];
        if *seen {
            self.problems.forget_member(fields.mark, &field.name);
        } else {
            *seen = true;
            fields.missing -= usize::from(field.required);
        }
        field.expected
    }

    /// Reports missing fields.
    fn end_fields(&mut self, fields: &Fields<'_>, is_record: bool) {
        if fields.missing > 0 {
            for (place, field) in fields.shape.fields.iter().enumerate() {
                // The `id` of a record is checked elsewhere, by the same rule for all models.
                let is_id = is_record && field.name == "id";
                if field.required && !self.seen[fields.first_seen + place] && !is_id {
                    let expected = field.expected.describe(self.parts);
                    let problem = format!("is missing, expected {expected}");
                    self.problems.add(Problem::of_member(&field.name, problem));
                }
            }
        }
        self.seen.truncate(fields.first_seen);
    }

    /// Reads the `id` of a record. Models can declare it as a string or an integer, but it is stored as text. A
    /// record that was read and is saved again can therefore have either type.
    fn id(&mut self, record: &mut Record<'_>, expected: Expected) -> Result<Piece, Malformed> {
        let start = self.scanner.at;
        let given = type_at(self.scanner.peek());
        let is_lenient = matches!(expected.kind, Kind::String | Kind::Integer);
        let form = self.value(if is_lenient { Expected::ANY } else { expected })?;
        let range = start..self.scanner.at;
        let text = &self.scanner.text[range.clone()];
        record.edits.retain(|edit| !matches!(edit, Edit::Quote(_)));
        match given {
            "string" => {
                let content = start + 1..self.scanner.at - 1;
                let is_integer = formats::is_plain_integer(&self.scanner.text[content.clone()]);
                if expected.kind == Kind::Integer && !is_integer {
                    self.mismatch(expected, "string");
                }
                record.id = Some(IdText::String(content));
            }
            "number" if formats::is_plain_integer(text) => {
                record.edits.push(Edit::Quote(range.clone()));
                record.id = Some(IdText::Integer(range));
                return Ok(self.assembly.quoted(text));
            }
            "number" => record.id = Some(IdText::Other("number with a fraction or an exponent")),
            _ => record.id = Some(IdText::Other(given)),
        }
        Ok(form)
    }

    /// Returns the shape of an expected object, or none if any object is accepted.
    fn object_shape(&mut self, expected: Expected) -> Option<&'s ObjectShape> {
        match expected.kind {
            Kind::Object(place) => return Some(&self.parts.objects[place]),
            Kind::Any | Kind::Schema(_) => {}
            _ => self.mismatch(expected, "object"),
        }
        None
    }

    /// Enters an array or object, past its bracket.
    #[inline]
    fn enter(&mut self) -> Result<(), Malformed> {
        if self.depth == MAX_DEPTH {
            return Err(self.scanner.malformed("at most 127 levels of arrays and objects"));
        }
        self.depth += 1;
        self.scanner.at += 1;
        Ok(())
    }

    #[inline]
    fn is_key(&self, key: Piece, name: &str) -> bool {
        self.assembly.content(key) == name.as_bytes()
    }

    #[cold]
    fn mismatch(&mut self, expected: Expected, given: &str) {
        let expected = expected.describe(self.parts);
        self.problems.add(Problem::here(format!("expected {expected}, got {given}")));
    }
}

/// The progress of the walk through the declared fields of one object.
struct Fields<'s> {
    shape: &'s ObjectShape,
    /// Start of its part of the list of seen fields.
    first_seen: usize,
    /// One more than the index of the previous field; 0 at the start.
    last: usize,
    /// Number of required fields that were not found yet.
    missing: usize,
    mark: Mark,
}

impl<'s> Fields<'s> {
    #[inline]
    fn begin(shape: &'s ObjectShape, seen: &mut Vec<bool>, mark: Mark) -> Self {
        let first_seen = seen.len();
        seen.resize(first_seen + shape.fields.len(), false);
        Self { shape, first_seen, last: 0, missing: shape.required, mark }
    }
}

/// Returns the type of a value that starts with this byte.
fn type_at(first: u8) -> &'static str {
    match first {
        b'"' => "string",
        b'{' => "object",
        b'[' => "array",
        b't' | b'f' => "boolean",
        b'n' => "null",
        _ => "number",
    }
}

impl Shape {
    /// Checks one JSON text.
    pub fn check(&self, text: &str) -> Result<(), Invalid> {
        let mut walk = Walk::new(text, self);
        walk.document()?;
        let problems = walk.problems.take();
        if problems.is_empty() { Ok(()) } else { Err(Invalid::Problems(problems)) }
    }
}
