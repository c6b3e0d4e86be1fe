//! Models in the compiled form that a walk over JSON text validates against.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::json::Malformed;
use super::problem::Problem;
use super::schema_file::SchemaFile;
use super::strings;
use super::types::{Model, Models, ObjectType, Type};
use syncline_types::ids::ModelName;

/// The required structure of a JSON text. Cheap to clone.
#[derive(Clone)]
pub struct Shape {
    pub(super) parts: Arc<Parts>,
    pub(super) root: Expected,
}

/// The reason why a text does not have a shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("{}", list(.0))]
    Problems(Vec<Problem>),
}

/// The reason why models do not compile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    #[error("unknown model `{0}`")]
    UnknownModel(ModelName),
    #[error("`{file}` is not a supported JSON Schema: {problem}")]
    Schema { file: String, problem: String },
}

impl Shape {
    /// Returns the shape of every JSON value.
    pub fn any() -> Self {
        Self { parts: Arc::default(), root: Expected::ANY }
    }

    /// Compiles a type with all models that it uses.
    pub fn compile(ty: &Type, models: &Models) -> Result<Self, ShapeError> {
        let mut compiler =
            Compiler { models, parts: Parts::default(), done: BTreeMap::new(), open: Vec::new() };
        let root = compiler.expected(ty)?;
        // In a loop, because models can refer to one another more deeply than the stack allows.
        while let Some((place, object)) = compiler.open.pop() {
            compiler.fields(object, place)?;
        }
        let mut first_follower = 0;
        for object in &mut compiler.parts.objects {
            object.first_follower = first_follower;
            first_follower += object.fields.len() + 1;
        }
        Ok(Self { parts: Arc::new(compiler.parts), root })
    }

    /// Compiles a model.
    pub fn of_model(name: &ModelName, models: &Models) -> Result<Self, ShapeError> {
        Self::compile(&Type::Model(name.clone()), models)
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shape").field("root", &self.root).finish_non_exhaustive()
    }
}

fn list(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("; ")
}

/// Everything that an [`Expected`] refers to by index.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) objects: Vec<ObjectShape>,
    pub(super) items: Vec<Expected>,
    pub(super) enums: Vec<EnumShape>,
    pub(super) schemas: Vec<SchemaFile>,
}

/// What is expected at one place of a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    pub(super) kind: Kind,
    pub(super) nullable: bool,
}

/// The numbers are indexes in [`Parts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Any,
    String,
    Integer,
    Number,
    Boolean,
    Date,
    Datetime,
    Enum(usize),
    Array(usize),
    Object(usize),
    Schema(usize),
}

#[derive(Default)]
pub(super) struct ObjectShape {
    pub(super) fields: Vec<FieldShape>,
    /// Indexes in `fields`, sorted by key.
    by_key: Vec<usize>,
    /// Start of its part of the list of [`Parts::file_order`].
    pub(super) first_follower: usize,
    pub(super) required: usize,
    pub(super) strict: bool,
}

pub(super) struct FieldShape {
    /// Escaped in canonical form, so that a key is found by comparing bytes.
    key: Vec<u8>,
    pub(super) name: String,
    pub(super) expected: Expected,
    pub(super) required: bool,
}

pub(super) struct EnumShape {
    /// Escaped in canonical form.
    values: Vec<Vec<u8>>,
    display: String,
}

impl Parts {
    /// Returns, for each object, the index of its first field, and for each of its fields the index of the next
    /// one.
    pub(super) fn file_order(&self) -> Vec<usize> {
        self.objects.iter().flat_map(|object| 0..=object.fields.len()).collect()
    }
}

impl Expected {
    pub(super) const ANY: Self = Self { kind: Kind::Any, nullable: true };

    /// Describes what is expected, for problems.
    pub(super) fn describe(self, parts: &Parts) -> String {
        let kind = match self.kind {
            Kind::Any | Kind::Schema(_) => return "any value".to_owned(),
            Kind::String => "string",
            Kind::Integer => "integer",
            Kind::Number => "number",
            Kind::Boolean => "boolean",
            Kind::Date => "date such as 2026-03-01",
            Kind::Datetime => "datetime such as 2026-03-01T09:00:00Z",
            Kind::Enum(index) => &parts.enums[index].display,
            Kind::Array(_) => "array",
            Kind::Object(_) => "object",
        };
        if self.nullable { format!("{kind} or null") } else { kind.to_owned() }
    }
}

impl ObjectShape {
    /// Returns the index of the field with this key, and looks at `guess` first.
    #[inline]
    pub(super) fn find(&self, key: &[u8], guess: usize) -> Option<usize> {
        if self.fields.get(guess).is_some_and(|field| field.key == key) {
            return Some(guess);
        }
        let place = self.by_key.binary_search_by(|&field| self.fields[field].key.as_slice().cmp(key));
        place.ok().map(|place| self.by_key[place])
    }
}

struct Compiler<'m> {
    models: &'m Models,
    parts: Parts,
    /// The compiled form of each model. A model is added before its fields are compiled, so that it can contain
    /// itself.
    done: BTreeMap<&'m ModelName, Kind>,
    /// The models whose fields are not compiled yet, with their indexes.
    open: Vec<(usize, &'m ObjectType)>,
}

impl<'m> Compiler<'m> {
    fn expected(&mut self, ty: &'m Type) -> Result<Expected, ShapeError> {
        let kind = match ty {
            Type::Optional(inner) => return Ok(Expected { nullable: true, ..self.expected(inner)? }),
            Type::Json => return Ok(Expected::ANY),
            Type::String => Kind::String,
            Type::Integer => Kind::Integer,
            Type::Number => Kind::Number,
            Type::Boolean => Kind::Boolean,
            Type::Date => Kind::Date,
            Type::Datetime => Kind::Datetime,
            Type::Enum(values) => {
                self.parts.enums.push(EnumShape::new(values, ty));
                Kind::Enum(self.parts.enums.len() - 1)
            }
            Type::Array(inner) => {
                let items = self.expected(inner)?;
                self.parts.items.push(items);
                Kind::Array(self.parts.items.len() - 1)
            }
            Type::Object(object) => {
                let place = self.place();
                self.fields(object, place)?;
                Kind::Object(place)
            }
            Type::Model(name) => self.model(name)?,
        };
        Ok(Expected { kind, nullable: false })
    }

    fn model(&mut self, name: &ModelName) -> Result<Kind, ShapeError> {
        if let Some(kind) = self.done.get(name) {
            return Ok(*kind);
        }
        let (name, model) =
            self.models.get_key_value(name).ok_or_else(|| ShapeError::UnknownModel(name.clone()))?;
        match model {
            Model::Object(object) => {
                let place = self.place();
                self.done.insert(name, Kind::Object(place));
                self.open.push((place, object));
                Ok(Kind::Object(place))
            }
            Model::Schema { file, schema } => {
                let schema = SchemaFile::compile(schema)
                    .map_err(|problem| ShapeError::Schema { file: file.clone(), problem })?;
                self.parts.schemas.push(schema);
                let kind = Kind::Schema(self.parts.schemas.len() - 1);
                self.done.insert(name, kind);
                Ok(kind)
            }
        }
    }

    /// Reserves the index of an object whose fields follow later.
    fn place(&mut self) -> usize {
        self.parts.objects.push(ObjectShape::default());
        self.parts.objects.len() - 1
    }

    fn fields(&mut self, object: &'m ObjectType, place: usize) -> Result<(), ShapeError> {
        let mut fields = Vec::with_capacity(object.fields.len());
        for field in &object.fields {
            let key = strings::escape(&field.name);
            let expected = self.expected(&field.ty)?;
            let required = !matches!(field.ty, Type::Optional(_));
            fields.push(FieldShape { key, name: field.name.clone(), expected, required });
        }
        let mut by_key: Vec<usize> = (0..fields.len()).collect();
        by_key.sort_by(|&a, &b| fields[a].key.cmp(&fields[b].key));
        let required = fields.iter().filter(|field| field.required).count();
        let strict = object.strict;
        self.parts.objects[place] = ObjectShape { fields, by_key, required, strict, first_follower: 0 };
        Ok(())
    }
}

impl EnumShape {
    fn new(values: &[String], ty: &Type) -> Self {
        let values = values.iter().map(|value| strings::escape(value)).collect();
        Self { values, display: ty.to_string() }
    }

    pub(super) fn accepts(&self, content: &[u8]) -> bool {
        self.values.iter().any(|value| value == content)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::json_schema;
    use super::*;

    fn models(list: &[(&str, &[(&str, &str)])]) -> Models {
        let object = |fields: &[(&str, &str)]| {
            let field = |(name, ty): &(&str, &str)| super::super::Field {
                name: (*name).to_owned(),
                ty: ty.parse().unwrap(),
            };
            Model::Object(ObjectType { fields: fields.iter().map(field).collect(), strict: false })
        };
        list.iter().map(|(name, fields)| (name.parse().unwrap(), object(fields))).collect()
    }

    fn schema_model(schema: Value) -> Models {
        Models::from([("Odd".parse().unwrap(), Model::Schema { file: "odd.json".to_owned(), schema })])
    }

    fn problems(ty: &str, models: &Models, text: &str) -> Vec<String> {
        match Shape::compile(&ty.parse().unwrap(), models).unwrap().check(text) {
            Ok(()) => Vec::new(),
            Err(Invalid::Problems(problems)) => problems.iter().map(Problem::to_string).collect(),
            Err(Invalid::Malformed(malformed)) => panic!("{malformed}"),
        }
    }

    #[test]
    fn problems_contain_place_and_types_but_no_values() {
        let models = models(&[
            (
                "Order",
                &[
                    ("id", "string"),
                    ("total", "integer"),
                    ("lines", "Line[]"),
                    ("state", "enum(open, closed)"),
                    ("a/b~c", "date?"),
                ],
            ),
            ("Line", &[("sku", "string"), ("at", "datetime")]),
        ]);
        let text = r#"{"id": 7, "total": 1.5, "lines": [{"sku": "x", "at": "secret"}, {"at": null}], "state": "secret", "a/b~c": "2026-02-30"}"#;
        assert_eq!(
            problems("Order", &models, text),
            [
                "at /id: expected string, got integer",
                "at /total: expected integer, got number",
                "at /lines/0/at: expected datetime such as 2026-03-01T09:00:00Z, got another string",
                "at /lines/1/at: expected datetime such as 2026-03-01T09:00:00Z, got null",
                "at /lines/1/sku: is missing, expected string",
                "at /state: expected enum(open, closed), got another string",
                "at /a~1b~0c: expected date such as 2026-03-01 or null, got another string",
            ]
        );
        assert_eq!(problems("Order", &models, "[]"), ["expected object, got array"]);
    }

    #[test]
    fn a_model_may_contain_itself() {
        let models = models(&[("Node", &[("name", "string"), ("parent", "Node?"), ("children", "Node[]")])]);
        let text =
            r#"{"name":"a","children":[{"name":"b","children":[],"parent":{"name":1,"children":[]}}]}"#;
        assert_eq!(
            problems("Node", &models, text),
            ["at /children/0/parent/name: expected string, got integer"]
        );
    }

    #[test]
    fn only_optional_fields_can_be_absent_or_null() {
        let models = models(&[("Pair", &[("a", "string?"), ("b", "json"), ("c", "string?[]")])]);
        assert!(problems("Pair", &models, r#"{"b":null,"c":[null,"x"]}"#).is_empty());
        assert!(problems("Pair", &models, r#"{"a":null,"b":1,"c":[],"more":true}"#).is_empty());
        assert_eq!(
            problems("Pair", &models, r#"{"c":null}"#),
            ["at /c: expected array, got null", "at /b: is missing, expected any value"]
        );
    }

    #[test]
    fn the_last_value_of_a_repeated_key_is_validated() {
        let models = models(&[("Pair", &[("a", "string"), ("ab", "string")])]);
        assert!(problems("Pair", &models, r#"{"a":[1],"ab":"","a":"x"}"#).is_empty());
        assert_eq!(problems("Pair", &models, r#"{"a":"x","ab":1,"a":2}"#).len(), 2);
        assert!(problems("Pair", &models, r#"{"a":1,"ab":"","a":2,"a":"x"}"#).is_empty());
        assert_eq!(
            problems("Pair", &models, r#"{"a":1,"ab":"","a":2}"#),
            ["at /a: expected string, got integer"]
        );
        let half = problems("Pair", &models, r#"{"a":"\ud83d","ab":"","a":"x"}"#);
        assert_eq!(
            half,
            ["at /a: is not valid Unicode: it contains half of a surrogate pair (`\\ud800` to `\\udfff`)"]
        );
    }

    #[test]
    fn a_strict_model_accepts_only_declared_fields() {
        let mut models = models(&[("Pair", &[("a", "string")])]);
        for model in models.values_mut() {
            let Model::Object(object) = model else { unreachable!() };
            object.strict = true;
        }
        assert_eq!(
            problems("Pair", &models, r#"{"a":"x","b":1}"#),
            ["at /b: is not declared, and the model is strict"]
        );
    }

    #[test]
    fn an_authors_schema_is_checked_where_it_is_used() {
        let schema = json!({
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string", "maxLength": 3}, "inner": {"$ref": "#"}, "n": {"type": ["integer", "null"]}},
        });
        let models = schema_model(schema);
        assert_eq!(problems("Odd[]", &models, r#"[{"name":"abc"},{"inner":{"name":1},"n":"x"}]"#).len(), 3);
        assert_eq!(
            problems("Odd", &models, r#"{"name":"a secret","n":0.5}"#),
            [
                "at /n: expected null or integer, got number",
                "at /name: the value is longer than 3 characters"
            ]
        );
        assert!(problems("Odd?", &models, "null").is_empty());
    }

    #[test]
    fn a_value_that_is_too_expensive_for_a_stored_schema_is_refused() {
        let again = json!({"properties": {"a": {"$ref": "#"}, "op": {"type": "string"}}});
        let models = schema_model(json!({"anyOf": [again, again]}));
        let nested =
            |depth: usize| format!("{}{{\"op\":\"x\"}}{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        assert!(problems("Odd", &models, &nested(8)).is_empty());
        assert_eq!(
            problems("Odd", &models, &nested(60)),
            [
                "is 61 levels deep, which takes too long to check with a schema that refers to itself several times"
            ]
        );
        // Already too expensive at a single value.
        let links: serde_json::Map<String, Value> = (0..40)
            .map(|n| {
                let next = json!({"$ref": format!("#/$defs/a{}", (n + 1) % 41)});
                (format!("a{n}"), json!({"allOf": [next, next]}))
            })
            .chain([("a40".to_owned(), json!({}))])
            .collect();
        let models = schema_model(json!({"$ref": "#/$defs/a0", "$defs": links}));
        assert_eq!(problems("Odd", &models, "{}").len(), 1);
    }

    #[test]
    fn the_longest_chain_of_references_fits_on_the_stack() {
        let link = |n: usize| (format!("a{n}"), json!({"not": {"$ref": format!("#/$defs/a{}", n + 1)}}));
        let mut links: serde_json::Map<String, Value> = (0..99).map(link).collect();
        links.insert("a99".to_owned(), json!({"type": "string"}));
        let models = schema_model(json!({"$ref": "#/$defs/a0", "$defs": links}));
        assert_eq!(problems("Odd", &models, "1"), [] as [&str; 0]);
        assert_eq!(problems("Odd", &models, "\"x\"").len(), 1);
    }

    #[test]
    fn a_schema_cannot_fetch_another() {
        for reference in ["https://example.com/schema.json", "file:///etc/passwd"] {
            let models = schema_model(json!({"$ref": reference}));
            let error = Shape::of_model(&"Odd".parse().unwrap(), &models).unwrap_err();
            assert!(error.to_string().starts_with("`odd.json` is not a supported JSON Schema: "), "{error}");
        }
    }

    /// Types over the models of [`published`], and texts that often match them.
    fn any_type() -> impl Strategy<Value = Type> {
        let words = [
            "string",
            "integer",
            "number",
            "boolean",
            "date",
            "datetime",
            "json",
            "enum(a, b)",
            "Node",
            "Odd",
        ];
        let leaf = proptest::sample::select(words.to_vec()).prop_map(|word| word.parse::<Type>().unwrap());
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                inner.clone().prop_map(Type::array),
                inner.clone().prop_map(Type::optional),
                (proptest::collection::vec(inner, 0..3), any::<bool>()).prop_map(|(types, strict)| {
                    let fields = types.into_iter().zip(["a", "b", "c"]);
                    let field = |(ty, name): (Type, &str)| super::super::Field { name: name.to_owned(), ty };
                    Type::Object(ObjectType { fields: fields.map(field).collect(), strict })
                }),
            ]
        })
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            proptest::sample::select(vec![
                json!(null),
                json!(true),
                json!(1),
                json!(0.5),
                json!(2.0),
                json!(1e300)
            ]),
            proptest::sample::select(vec![
                json!("a"),
                json!("x"),
                json!("2026-03-01"),
                json!("2026-03-01T09:00:00Z")
            ]),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::btree_map("[abcd]", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    /// Returns a value that usually matches the type.
    fn fitting(ty: &Type, other: &Value) -> Value {
        match ty {
            Type::Array(inner) => json!([fitting(inner, other), fitting(inner, other)]),
            Type::Optional(inner) => fitting(inner, other),
            Type::Object(object) => {
                object.fields.iter().map(|field| (field.name.clone(), fitting(&field.ty, other))).collect()
            }
            Type::Model(name) if name.as_str() == "Node" => json!({"a": "x", "b": [other]}),
            Type::Model(_) => json!({"a": other}),
            _ => other.clone(),
        }
    }

    proptest! {
        #[test]
        fn a_shape_accepts_what_its_published_schema_accepts(ty in any_type(), value in any_value(), fit in any::<bool>()) {
            let mut models = models(&[("Node", &[("a", "string"), ("b", "Node[]?")])]);
            models.extend(schema_model(json!({"properties": {"a": {"$ref": "#/$defs/short"}}, "$defs": {"short": {"maxLength": 1}}})));
            let value = if fit { fitting(&ty, &value) } else { value };
            let published = json_schema::of_type(&ty, &models);
            let validator = jsonschema::options().should_validate_formats(true).build(&published).unwrap();
            let shape = Shape::compile(&ty, &models).unwrap();
            prop_assert_eq!(shape.check(&value.to_string()).is_ok(), validator.is_valid(&value), "{} {}", published, value);
        }
    }
}
