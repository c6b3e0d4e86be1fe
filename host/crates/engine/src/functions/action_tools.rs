//! Describes actions as AI tools, and turns a tool's arguments into an action's input.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use syncline_config::ActionSpec;
use syncline_model::{Model, Models, Type, json_schema};

/// The description of an action as a tool. Both schemas describe objects, because tools accept and return only objects.
#[derive(Debug)]
pub struct ActionTool {
    pub description: Option<String>,
    pub input: Arc<Map<String, Value>>,
    /// `None` if the action returns something other than an object, or declares no output.
    pub output: Option<Arc<Map<String, Value>>>,
    tool_input: ToolInput,
}

/// How a tool's arguments become the action's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ToolInput {
    /// The action has no input model.
    Anything,
    /// The arguments are the input.
    Object,
    /// The input is not an object, so it is the argument `input`.
    Member,
}

impl ActionTool {
    pub(crate) fn new(spec: &ActionSpec, models: &Models) -> Self {
        let (input, tool_input) = match &spec.input {
            None => (json!({ "type": "object" }), ToolInput::Anything),
            Some(ty) => match object_schema(ty, models) {
                Some(schema) => (schema, ToolInput::Object),
                None => (member_schema(ty, models), ToolInput::Member),
            },
        };
        let output = spec.output.as_ref().and_then(|ty| object_schema(ty, models));
        Self {
            description: spec.description.clone(),
            input: Arc::new(members(input)),
            output: output.map(|schema| Arc::new(members(schema))),
            tool_input,
        }
    }

    /// Builds the action's input, as JSON text, from a tool's arguments. The arguments are an object.
    pub fn input_of(&self, arguments: Option<&RawValue>) -> Result<Option<String>, serde_json::Error> {
        #[derive(Deserialize)]
        struct Arguments {
            input: Option<Box<RawValue>>,
        }
        let text = arguments.map_or("{}", RawValue::get);
        Ok(match self.tool_input {
            ToolInput::Anything => arguments.map(|arguments| arguments.get().to_owned()),
            ToolInput::Object => Some(text.to_owned()),
            ToolInput::Member => {
                let arguments: Arguments = serde_json::from_str(text)?;
                arguments.input.map(|input| Box::<str>::from(input).into_string())
            }
        })
    }
}

/// Returns the schema of an object type, with every model that it refers to under `$defs`. `None` if the type allows
/// values that are not objects.
pub(crate) fn object_schema(ty: &Type, models: &Models) -> Option<Value> {
    let mut schema = json_schema::of_type(ty, models);
    let definitions = schema["$defs"].take();
    let mut root = match ty {
        Type::Object(_) => schema,
        Type::Model(name) => match models.get(name)? {
            Model::Object(_) => definitions[name.as_str()].clone(),
            Model::Schema { schema, .. } if schema["type"] != "object" => return None,
            // References in an author's schema are relative to its own root, so it stays under `$defs`.
            Model::Schema { .. } => json!({ "type": "object", "$ref": format!("#/$defs/{name}") }),
        },
        _ => return None,
    };
    set_definitions(&mut root, definitions);
    Some(root)
}

/// Returns the schema of an object whose member `input` is a value of this type.
pub(crate) fn member_schema(ty: &Type, models: &Models) -> Value {
    let mut schema = json_schema::of_type(ty, models);
    let definitions = schema["$defs"].take();
    set_definitions(&mut schema, Value::Null);
    let mut root = json!({ "type": "object", "properties": { "input": schema }, "required": ["input"] });
    if matches!(ty, Type::Optional(_)) {
        root["required"] = json!([]);
    }
    set_definitions(&mut root, definitions);
    root
}

/// Adds definitions to a root schema. The root names no dialect: readers assume the newest one, in which it is written.
fn set_definitions(root: &mut Value, definitions: Value) {
    let Value::Object(keywords) = root else { return };
    keywords.retain(|name, _| name != "$schema" && name != "$defs");
    if !definitions.is_null() {
        keywords.insert("$defs".to_owned(), definitions);
    }
}

fn members(schema: Value) -> Map<String, Value> {
    match schema {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_model::{Field, ObjectType};

    fn models() -> Models {
        let order =
            ObjectType { fields: vec![Field { name: "id".to_owned(), ty: Type::String }], strict: true };
        let list = json!({ "type": "array" });
        let free =
            json!({ "type": "object", "properties": { "x": { "$ref": "#/$defs/x" } }, "$defs": { "x": {} } });
        let of_schema = |schema: &Value| Model::Schema { file: "x.json".to_owned(), schema: schema.clone() };
        Models::from([
            ("Order".parse().unwrap(), Model::Object(order)),
            ("List".parse().unwrap(), of_schema(&list)),
            ("Free".parse().unwrap(), of_schema(&free)),
        ])
    }

    #[test]
    fn the_schema_of_an_object_becomes_the_schema_of_the_tool() {
        let order = object_schema(&Type::Model("Order".parse().unwrap()), &models()).unwrap();
        assert_eq!(order["properties"], json!({ "id": { "type": "string" } }));
        assert_eq!((&order["type"], &order["additionalProperties"]), (&json!("object"), &json!(false)));
        assert_eq!(order.get("$schema"), None);
    }

    #[test]
    fn an_authors_schema_keeps_its_references() {
        let free = object_schema(&Type::Model("Free".parse().unwrap()), &models()).unwrap();
        assert_eq!((&free["type"], &free["$ref"]), (&json!("object"), &json!("#/$defs/Free")));
        assert!(jsonschema::validator_for(&free).unwrap().is_valid(&json!({ "x": 1 })));
    }

    #[test]
    fn a_type_that_is_no_object_becomes_the_argument_input() {
        for ty in [Type::Integer, Type::Model("List".parse().unwrap()), Type::Json] {
            assert_eq!(object_schema(&ty, &models()), None, "{ty}");
            let schema = member_schema(&ty, &models());
            assert_eq!(schema["required"], json!(["input"]), "{ty}");
            assert!(jsonschema::validator_for(&schema).is_ok(), "{ty}");
        }
        let optional = member_schema(&Type::Optional(Box::new(Type::Integer)), &models());
        assert_eq!(optional["required"], json!([]));
    }

    #[test]
    fn arguments_become_the_input_without_reformatting() {
        let tool =
            |tool_input| ActionTool { description: None, input: Arc::default(), output: None, tool_input };
        let arguments: Box<RawValue> =
            serde_json::from_str(r#"{"input": 12345678901234567890123.0}"#).unwrap();
        let given = Some(&*arguments);
        let input = |tool_input, given| tool(tool_input).input_of(given).unwrap();
        assert_eq!(input(ToolInput::Object, given).as_deref(), Some(arguments.get()));
        assert_eq!(input(ToolInput::Member, given).as_deref(), Some("12345678901234567890123.0"));
        assert_eq!(input(ToolInput::Object, None).as_deref(), Some("{}"));
        assert_eq!(input(ToolInput::Member, None), None);
        assert_eq!(input(ToolInput::Anything, None), None);
        let twice: Box<RawValue> = serde_json::from_str(r#"{"input": 1, "input": 2}"#).unwrap();
        assert!(tool(ToolInput::Member).input_of(Some(&twice)).is_err());
    }
}
