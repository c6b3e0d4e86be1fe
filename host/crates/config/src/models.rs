//! `[models.NAME]`: fields and their types, and the rules between models and the functions that use them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path};

use toml::de::DeValue;

use super::diagnostics::{Diagnostics, Span, did_you_mean};
use super::table::{Table, Text, Value};
use syncline_model::{
    Field, Keeping, MAX_TYPE_DEPTH, Model, Models, ObjectType, OnBadRecord, Shape, ShapeError, Type,
    check_cost,
};
use syncline_types::ids::ModelName;

/// The models of a file with their places.
#[derive(Default)]
pub(super) struct ReadModels {
    models: Models,
    /// Contains only settings that differ from the default.
    keeping: BTreeMap<ModelName, Keeping>,
    places: BTreeMap<ModelName, Span>,
}

/// The places where models are named.
#[derive(Default)]
pub(super) struct Uses {
    /// Models named in types.
    types: Vec<(ModelName, Span)>,
    /// Models that functions save, each with the function's kind and name for messages.
    saved: Vec<(ModelName, Span, String)>,
}

/// Maximum nesting of a JSON Schema's lists and objects. The schema is stored inside the configuration's JSON, and
/// JSON parsers accept a depth of 128.
const MAX_SCHEMA_DEPTH: usize = 100;
const TYPE_HELP: &str = "use a type such as \"string?\" or \"Customer[]\", or { … } for an object";

pub(super) fn read_models(
    table: Table<'_>,
    found: &mut Diagnostics,
    uses: &mut Uses,
    schema_files: &dyn Fn(&str) -> io::Result<String>,
) -> ReadModels {
    let mut read = ReadModels::default();
    for (key, value) in table.entries() {
        let name = key.parse::<ModelName>(found);
        let Some(table) = Table::of(value, &key, found) else { continue };
        let model = match schema_file(&table) {
            Some(path) => read_schema(&table, path, found, schema_files),
            None => Some(Model::Object(read_fields(&table, &is_keeping, 0, found, uses))),
        };
        let keeping = read_keeping(&table, found);
        if let (Some(name), Some(model)) = (name, model) {
            read.places.insert(name.clone(), key.span);
            if keeping != Keeping::default() {
                read.keeping.insert(name.clone(), keeping);
            }
            read.models.insert(name, model);
        }
    }
    read
}

/// Reads a type: a string, a list with the type of its elements, or an object.
pub(super) fn read_type(
    value: Value<'_>,
    key: &str,
    found: &mut Diagnostics,
    uses: &mut Uses,
) -> Option<Type> {
    read_type_within(value, key, 0, found, uses)
}

/// Reads a type that is nested in `depth` lists and objects.
fn read_type_within(
    value: Value<'_>,
    key: &str,
    depth: usize,
    found: &mut Diagnostics,
    uses: &mut Uses,
) -> Option<Type> {
    let too_deep = |found: &mut Diagnostics| {
        let message = format!("`{key}` has more than {MAX_TYPE_DEPTH} nested lists and objects");
        found.add(value.span(), message, Some("move the inner part to a separate model".to_owned()));
        None
    };
    match value.get_ref() {
        DeValue::Array(_) | DeValue::Table(_) if depth >= MAX_TYPE_DEPTH => too_deep(found),
        DeValue::String(text) => {
            let ty: Type = Text { text, span: value.span() }.parse(found)?;
            if depth + ty.depth() > MAX_TYPE_DEPTH {
                return too_deep(found);
            }
            uses.types.extend(ty.models().into_iter().map(|name| (name.clone(), value.span())));
            Some(ty)
        }
        DeValue::Array(elements) => match elements.iter().collect::<Vec<_>>()[..] {
            [element] => read_type_within(element, key, depth + 1, found, uses).map(Type::array),
            _ => {
                let message = format!(
                    "`{key}` is a list type with {} elements; it must have exactly one",
                    elements.len()
                );
                let help = "write the type of the elements once, such as [{ sku = \"string\" }]";
                found.add(value.span(), message, Some(help.to_owned()));
                None
            }
        },
        DeValue::Table(_) => {
            let table = Table::of(value, &Text { text: key, span: value.span() }, found)?;
            Some(Type::Object(read_fields(&table, &|_, _| false, depth + 1, found, uses)))
        }
        other => {
            let message = format!("`{key}` must be a type, got {}", other.type_str());
            found.add(value.span(), message, Some(TYPE_HELP.to_owned()));
            None
        }
    }
}

/// Checks that every named model exists, and that saved models can be stored as records.
pub(super) fn check_models(read: &ReadModels, uses: &Uses, found: &mut Diagnostics) {
    let saved = uses.saved.iter().map(|(name, span, _)| (name, span));
    for (name, span) in uses.types.iter().map(|(name, span)| (name, span)).chain(saved) {
        // Searching for a similar name takes time, and is useless if no further mistake is reported.
        if !read.models.contains_key(name) && !found.is_full() {
            let near = did_you_mean(name.as_str(), read.models.keys().map(ModelName::as_str));
            let help = match near {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("declare it as `[models.{name}]`"),
            };
            found.add(span.clone(), format!("unknown model `{name}`"), Some(help));
        }
    }
    check_ids(read, uses, found);
    check_ends(read, found);
    for (name, model) in &read.models {
        let Model::Schema { file, schema } = model else { continue };
        let usable = Shape::of_model(name, &read.models).map(drop).and_then(|()| {
            check_cost(schema).map_err(|problem| ShapeError::Schema { file: file.clone(), problem })
        });
        if let Err(error) = usable {
            found.add(read.places[name].clone(), error.to_string(), None);
        }
    }
}

impl ReadModels {
    pub(super) fn into_parts(self) -> (Models, BTreeMap<ModelName, Keeping>) {
        (self.models, self.keeping)
    }
}

impl Uses {
    /// Notes that a function saves a model.
    pub(super) fn save(&mut self, model: &ModelName, span: Span, function: String) {
        self.saved.push((model.clone(), span, function));
    }
}

/// Checks that every saved model declares a usable `id`.
fn check_ids(read: &ReadModels, uses: &Uses, found: &mut Diagnostics) {
    let mut checked = BTreeSet::new();
    for (name, _, function) in &uses.saved {
        let (Some(Model::Object(object)), true) = (read.models.get(name), checked.insert(name)) else {
            continue;
        };
        let problem = match object.field("id").map(|field| &field.ty) {
            Some(Type::String | Type::Integer) => continue,
            Some(ty) => format!("the `id` of model `{name}` is `{ty}`, and {function} saves it"),
            None => format!("model `{name}` has no `id`, and {function} saves it"),
        };
        let help = "declare `id = \"string\"` or `id = \"integer\"`, which identifies the records";
        found.add(read.places[name].clone(), problem, Some(help.to_owned()));
    }
}

/// Finds models that no finite value can match, because every value contains another value of the model.
fn check_ends(read: &ReadModels, found: &mut Diagnostics) {
    // The number of contained models that are not yet known to be finite, by model.
    let mut open: BTreeMap<&ModelName, usize> = BTreeMap::new();
    let mut containers: BTreeMap<&ModelName, Vec<&ModelName>> = BTreeMap::new();
    for (name, model) in &read.models {
        let mut contained = Vec::new();
        if let Model::Object(object) = model {
            object.fields.iter().for_each(|field| add_contained(&field.ty, &mut contained));
        }
        // A model that does not exist is reported elsewhere.
        contained.retain(|inner| read.models.contains_key(*inner));
        open.insert(name, contained.len());
        for inner in contained {
            containers.entry(inner).or_default().push(name);
        }
    }
    let mut ending: Vec<&ModelName> =
        open.iter().filter(|(_, count)| **count == 0).map(|(name, _)| *name).collect();
    while let Some(name) = ending.pop() {
        for container in containers.get(name).into_iter().flatten() {
            if let Some(count) = open.get_mut(container) {
                *count -= 1;
                if *count == 0 {
                    ending.push(container);
                }
            }
        }
    }
    for (name, span) in read.places.iter().filter(|(name, _)| open.get(name).is_some_and(|count| *count > 0))
    {
        let help = "make a field of the cycle optional (`?`) or a list (`[]`)";
        let message = format!("model `{name}` always contains itself, so no value can match it");
        found.add(span.clone(), message, Some(help.to_owned()));
    }
}

/// Adds the models that every value of the type contains.
fn add_contained<'t>(ty: &'t Type, contained: &mut Vec<&'t ModelName>) {
    match ty {
        Type::Model(name) => contained.push(name),
        Type::Object(object) => object.fields.iter().for_each(|field| add_contained(&field.ty, contained)),
        _ => {}
    }
}

/// Whether a key of a model's table is a storage setting and not a field.
fn is_keeping(key: &str, value: &DeValue<'_>) -> bool {
    key == "on_bad_record" || key == "encrypt" && matches!(value, DeValue::Boolean(_))
}

fn read_keeping(table: &Table<'_>, found: &mut Diagnostics) -> Keeping {
    let mut keeping = Keeping::default();
    for (key, value) in table.entries() {
        match (key.text, value.get_ref()) {
            ("on_bad_record", DeValue::String(text)) if text == "fail" => {}
            ("on_bad_record", DeValue::String(text)) if text == "set_aside" => {
                keeping.on_bad_record = OnBadRecord::SetAside;
            }
            ("encrypt", DeValue::Boolean(encrypt)) => keeping.encrypt = *encrypt,
            ("on_bad_record", _) => {
                let help = "a field of this name can be declared as \"on_bad_record?\", or in a JSON Schema";
                let message = "`on_bad_record` must be \"fail\" or \"set_aside\"";
                found.add(value.span(), message.to_owned(), Some(help.to_owned()));
            }
            _ => {}
        }
    }
    keeping
}

fn read_fields(
    table: &Table<'_>,
    is_apart: &dyn Fn(&str, &DeValue<'_>) -> bool,
    depth: usize,
    found: &mut Diagnostics,
    uses: &mut Uses,
) -> ObjectType {
    let mut object = ObjectType::default();
    let mut names = BTreeSet::new();
    for (key, value) in table.entries() {
        if is_apart(key.text, value.get_ref()) {
            continue;
        }
        if let ("strict", DeValue::Boolean(strict)) = (key.text, value.get_ref()) {
            object.strict = *strict;
            continue;
        }
        let (name, is_optional) = key.text.strip_suffix('?').map_or((key.text, false), |name| (name, true));
        let Some(ty) = read_type_within(value, name, depth, found, uses) else { continue };
        if !names.insert(name) {
            found.add(key.span, format!("field `{name}` is declared twice"), None);
            continue;
        }
        let ty = if is_optional { ty.optional() } else { ty };
        object.fields.push(Field { name: name.to_owned(), ty });
    }
    object
}

/// Returns the value of `schema`, if it is the path of a file and not the type of a field.
fn schema_file<'t>(table: &Table<'t>) -> Option<Text<'t>> {
    let entries = table.entries().into_iter();
    entries.filter(|(key, _)| key.text == "schema").find_map(|(_, value)| match value.get_ref() {
        DeValue::String(path) if path.ends_with(".json") => Some(Text { text: path, span: value.span() }),
        _ => None,
    })
}

fn read_schema(
    table: &Table<'_>,
    path: Text<'_>,
    found: &mut Diagnostics,
    schema_files: &dyn Fn(&str) -> io::Result<String>,
) -> Option<Model> {
    for (key, value) in table.entries() {
        if key.text == "schema" || is_keeping(key.text, value.get_ref()) {
            continue;
        }
        let message = format!("`{}` cannot be used together with `schema`", key.text);
        found.add(key.span, message, Some("move it into the schema, or declare all fields here".to_owned()));
    }
    if !Path::new(path.text).components().all(|step| matches!(step, Component::Normal(_))) {
        let message = format!("`{}` leads out of the folder of this file", path.text);
        found.add(
            path.span,
            message,
            Some("put schemas into this folder, such as \"schemas/customer.json\"".to_owned()),
        );
        return None;
    }
    let problem = match schema_files(path.text) {
        Ok(text) => match serde_json::from_str(&text) {
            Ok(schema) if depth(&schema) > MAX_SCHEMA_DEPTH => format!(
                "`{}` has more than {MAX_SCHEMA_DEPTH} nested lists and objects; move inner schemas to `$defs`",
                path.text
            ),
            Ok(schema) => return Some(Model::Schema { file: path.text.to_owned(), schema }),
            Err(error) => format!("`{}` is not JSON: {error}", path.text),
        },
        Err(error) => format!("`{}` could not be read: {error}", path.text),
    };
    found.add(path.span, problem, None);
    None
}

fn depth(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(elements) => 1 + elements.iter().map(depth).max().unwrap_or_default(),
        serde_json::Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or_default(),
        _ => 0,
    }
}
