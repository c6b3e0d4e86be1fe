//! `models.ts`: an interface for each model, the types of the functions, and the part of `syncline.toml` that the fake
//! host checks.

use std::fmt::Write as _;

use serde_json::{Value, json};
use syncline_config::ConfigFile;
use syncline_config::{ActionSpec, IntegrationSpec};
use syncline_model::{Model, ObjectType, OnBadRecord, Type, json_schema};
use syncline_types::ids::ModelName;

use super::names::{is_identifier, pascal};
use super::{HEADER, models, required};

pub fn generate(file: &ConfigFile) -> String {
    let mut text = format!("// {HEADER}\nimport type {{ Project }} from \"@syncline/sdk\";\n");
    for (name, model) in models(file) {
        let fields = match model {
            Model::Object(object) => object_type(object, 0),
            Model::Schema { .. } => "{\n  [field: string]: unknown;\n}".to_owned(),
        };
        let _ = write!(text, "\nexport interface {} {fields}\n", pascal(name.as_str()));
    }
    text.push_str("\nexport interface Integrations {\n");
    for integration in &file.config.integrations {
        let names = |names: Vec<&str>| {
            let quoted: Vec<String> = names.into_iter().map(quoted).collect();
            if quoted.is_empty() { "never".to_owned() } else { quoted.join(" | ") }
        };
        let syncs = names(integration.syncs.iter().map(|sync| sync.name.as_str()).collect());
        let webhooks = names(integration.webhooks.iter().map(|webhook| webhook.name.as_str()).collect());
        let lifecycle = names(integration.lifecycle.iter().map(|event| event.name.as_str()).collect());
        let actions: String = integration.actions.iter().map(action_types).collect();
        let actions = if actions.is_empty() { "{}".to_owned() } else { format!("{{\n{actions}    }}") };
        let key = key(integration.key.as_str());
        let _ = write!(
            text,
            "  {key}: {{\n    syncs: {syncs};\n    actions: {actions};\n    webhooks: {webhooks};\n    \
             lifecycle: {lifecycle};\n  }};\n"
        );
    }
    text.push_str("}\n");
    text.push_str(&project(file));
    text
}

fn action_types(action: &ActionSpec) -> String {
    let ty = |ty: &Option<Type>| ty.as_ref().map_or_else(|| "unknown".to_owned(), |ty| type_text(ty, 4));
    let (input, output) = (ty(&action.input), ty(&action.output));
    let key = key(action.name.as_str());
    format!("      {key}: {{\n        input: {input};\n        output: {output};\n      }};\n")
}

/// `indent` is the number of levels around the type.
fn type_text(ty: &Type, indent: usize) -> String {
    match ty {
        Type::String | Type::Date | Type::Datetime => "string".to_owned(),
        Type::Integer | Type::Number => "number".to_owned(),
        Type::Boolean => "boolean".to_owned(),
        Type::Json => "unknown".to_owned(),
        Type::Enum(values) => values.iter().map(|value| quoted(value)).collect::<Vec<_>>().join(" | "),
        Type::Array(inner) => match &**inner {
            Type::Enum(_) | Type::Optional(_) => format!("({})[]", type_text(inner, indent)),
            inner => format!("{}[]", type_text(inner, indent)),
        },
        Type::Object(object) => object_type(object, indent),
        Type::Model(name) => pascal(name.as_str()),
        // Any value includes `null`.
        Type::Optional(inner) if **inner == Type::Json => "unknown".to_owned(),
        Type::Optional(inner) => format!("{} | null", type_text(inner, indent)),
    }
}

fn object_type(object: &ObjectType, indent: usize) -> String {
    let space = "  ".repeat(indent);
    let mut text = "{\n".to_owned();
    for field in &object.fields {
        let sign = if required(&field.ty).1 { "?" } else { "" };
        let ty = type_text(&field.ty, indent + 1);
        let _ = writeln!(text, "{space}  {}{sign}: {ty};", key(&field.name));
    }
    text + &space + "}"
}

fn project(file: &ConfigFile) -> String {
    let config = &file.config;
    let mut text = format!(
        "\nexport const project: Project = {{\n  name: {},\n  models: {{\n",
        quoted(config.name.as_str())
    );
    for (name, _) in models(file) {
        let sets_aside =
            config.keeping.get(name).is_some_and(|keeping| keeping.on_bad_record == OnBadRecord::SetAside);
        let on_bad_record = if sets_aside { "      onBadRecord: \"set_aside\",\n" } else { "" };
        let schema = json_schema::definition(name, &config.models);
        let key = key(name.as_str());
        let _ = write!(text, "    {key}: {{\n{on_bad_record}      schema: {schema},\n    }},\n");
    }
    text.push_str("  },\n  integrations: {\n");
    for integration in &config.integrations {
        text.push_str(&project_integration(integration));
    }
    text + "  },\n};\n"
}

fn project_integration(integration: &IntegrationSpec) -> String {
    let list = |models: &[ModelName]| Value::from(models.iter().map(ModelName::as_str).collect::<Vec<_>>());
    let table = |name: &str, entries: Vec<(&str, &[ModelName])>| {
        let mut text = format!("      {name}: {{");
        for (name, models) in &entries {
            let _ = write!(text, "\n        {}: {{ models: {} }},", key(name), spaced(&list(models)));
        }
        text + if entries.is_empty() { "},\n" } else { "\n      },\n" }
    };
    let mut actions = "      actions: {".to_owned();
    for action in &integration.actions {
        let _ = write!(
            actions,
            "\n        {}: {{\n          models: {},\n",
            key(action.name.as_str()),
            spaced(&list(&action.models))
        );
        for (name, ty) in [("input", &action.input), ("output", &action.output)] {
            if let Some(ty) = ty {
                let _ = writeln!(actions, "          {name}: {},", json_schema::reference(ty));
            }
        }
        actions.push_str("        },");
    }
    actions.push_str(if integration.actions.is_empty() { "},\n" } else { "\n      },\n" });
    let syncs = integration.syncs.iter().map(|sync| (sync.name.as_str(), &*sync.models)).collect();
    let webhooks =
        integration.webhooks.iter().map(|webhook| (webhook.name.as_str(), &*webhook.models)).collect();
    let lifecycle = integration.lifecycle.iter().map(|event| (event.name.as_str(), &*event.models)).collect();
    format!(
        "    {}: {{\n      provider: {},\n{}{actions}{}{}    }},\n",
        key(integration.key.as_str()),
        quoted(integration.provider.as_str()),
        table("syncs", syncs),
        table("webhooks", webhooks),
        table("lifecycle", lifecycle),
    )
}

/// A list of texts with a space after each comma.
fn spaced(list: &Value) -> String {
    list.to_string().replace("\",\"", "\", \"")
}

/// A key of an object, quoted if necessary.
fn key(name: &str) -> String {
    if is_identifier(name) { name.to_owned() } else { quoted(name) }
}

fn quoted(text: &str) -> String {
    json!(text).to_string()
}
