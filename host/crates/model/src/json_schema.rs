//! Models as JSON Schemas (2020-12), for clients that ask for the input and output of functions.

use serde_json::{Map, Value, json};

use super::types::{Model, Models, ObjectType, Type};
use syncline_types::ids::ModelName;

/// The dialect of the generated schemas.
pub const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Returns the schema of a type, with every model that it uses in `$defs`. A model that does not exist accepts any
/// value.
pub fn of_type(ty: &Type, models: &Models) -> Value {
    let mut definitions = Map::new();
    define(ty, models, &mut definitions);
    let mut schema = Map::new();
    schema.insert("$schema".to_owned(), json!(DIALECT));
    if let Value::Object(keywords) = type_schema(ty) {
        schema.extend(keywords);
    }
    if !definitions.is_empty() {
        schema.insert("$defs".to_owned(), Value::Object(definitions));
    }
    Value::Object(schema)
}

/// Returns the schema of a model.
pub fn of_model(name: &ModelName, models: &Models) -> Value {
    of_type(&Type::Model(name.clone()), models)
}

/// Returns the schema of a model, with references such as `#/$defs/Customer` to the schemas of other models.
pub fn definition(name: &ModelName, models: &Models) -> Value {
    match models.get(name) {
        Some(Model::Object(object)) => object_schema(object),
        Some(Model::Schema { schema, .. }) => embedded(name, schema),
        None => json!({}),
    }
}

/// Returns the schema of a type, with references to models as in [`definition`].
pub fn reference(ty: &Type) -> Value {
    type_schema(ty)
}

fn define(ty: &Type, models: &Models, definitions: &mut Map<String, Value>) {
    let mut open = ty.models();
    while let Some(name) = open.pop() {
        if definitions.contains_key(name.as_str()) {
            continue;
        }
        definitions.insert(name.to_string(), definition(name, models));
        if let Some(Model::Object(object)) = models.get(name) {
            open.extend(object.fields.iter().flat_map(|field| field.ty.models()));
        }
    }
}

fn type_schema(ty: &Type) -> Value {
    match ty {
        Type::String => json!({"type": "string"}),
        Type::Integer => json!({"type": "integer"}),
        Type::Number => json!({"type": "number"}),
        Type::Boolean => json!({"type": "boolean"}),
        Type::Date => json!({"type": "string", "format": "date"}),
        Type::Datetime => json!({"type": "string", "format": "date-time"}),
        Type::Json => json!({}),
        Type::Enum(values) => json!({"enum": values}),
        Type::Array(inner) => json!({"type": "array", "items": type_schema(inner)}),
        Type::Object(object) => object_schema(object),
        Type::Model(name) => json!({"$ref": format!("#/$defs/{name}")}),
        Type::Optional(inner) => match &**inner {
            Type::Json => json!({}),
            inner => json!({"anyOf": [type_schema(inner), {"type": "null"}]}),
        },
    }
}

fn object_schema(object: &ObjectType) -> Value {
    let properties: Map<String, Value> =
        object.fields.iter().map(|field| (field.name.clone(), type_schema(&field.ty))).collect();
    let is_required = |ty: &Type| !matches!(ty, Type::Optional(_));
    let required: Vec<&str> = object
        .fields
        .iter()
        .filter(|field| is_required(&field.ty))
        .map(|field| field.name.as_str())
        .collect();
    let mut schema = json!({"type": "object", "properties": properties, "required": required});
    if object.strict {
        schema["additionalProperties"] = json!(false);
    }
    schema
}

/// Embeds an author's schema in another one. A separate `$id` keeps its `#/…` references inside.
fn embedded(name: &ModelName, schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Value::Object(keywords) = &mut schema {
        keywords.entry("$id").or_insert_with(|| json!(format!("urn:syncline:model:{name}")));
    }
    schema
}
