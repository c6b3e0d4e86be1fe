//! `models.rs`: a struct for each model, and for each object within one.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use syncline_config::ConfigFile;
use syncline_model::{Model, Models, ObjectType, Type};
use syncline_types::ids::ModelName;

use super::names::{identifier, is_identifier, pascal};
use super::{HEADER, models};

/// Keywords that a field can have as a raw identifier.
const KEYWORDS: [&str; 47] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn", "else",
    "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "macro",
    "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return", "static", "struct", "trait",
    "true", "try", "type", "typeof", "unsafe", "unsized", "use", "virtual", "where", "while",
];
/// Keywords that cannot be raw identifiers.
const SPECIAL: [&str; 5] = ["crate", "self", "super", "Self", "_"];
const DERIVES: &str = "#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]\n";

pub fn generate(file: &ConfigFile) -> String {
    let mut writer = Writer {
        models: &file.config.models,
        names: models(file).into_iter().map(|(name, _)| pascal(name.as_str())).collect(),
        text: format!(
            "// {HEADER}\n//! Models of `syncline.toml`.\n\n#![allow(dead_code, reason = \"a function need not use every model\")]\n\n"
        ),
    };
    writer.text.push_str("use serde::{Deserialize, Serialize};\n");
    for (name, model) in models(file) {
        match model {
            Model::Object(object) => writer.object(&pascal(name.as_str()), object),
            Model::Schema { .. } => {
                let _ = write!(
                    writer.text,
                    "\npub type {} = syncline_sdk::serde_json::Map<String, syncline_sdk::serde_json::Value>;\n",
                    pascal(name.as_str())
                );
            }
        }
    }
    for action in file.config.integrations.iter().flat_map(|integration| &integration.actions) {
        for (suffix, ty) in [("Input", &action.input), ("Output", &action.output)] {
            let name = pascal(action.name.as_str()) + suffix;
            match ty {
                None | Some(Type::Model(_)) => {}
                Some(Type::Object(object)) => writer.object(&name, object),
                Some(ty) => {
                    let mut nested = Vec::new();
                    let ty = writer.type_text(ty, &(name.clone() + "Item"), &mut nested);
                    let _ = write!(writer.text, "\npub type {name} = {ty};\n");
                    nested.iter().for_each(|nested| writer.nested(nested));
                }
            }
        }
    }
    writer.text
}

struct Writer<'f> {
    models: &'f Models,
    /// The names of all types.
    names: BTreeSet<String>,
    text: String,
}

/// A type within another one that needs a separate definition.
enum Nested<'t> {
    Object(String, &'t ObjectType),
    Enum(String, &'t [String]),
}

impl Writer<'_> {
    fn object(&mut self, name: &str, object: &ObjectType) {
        let mut nested = Vec::new();
        let mut fields = String::new();
        let mut taken = BTreeSet::new();
        for field in &object.fields {
            let ty = self.type_text(&field.ty, &(name.to_owned() + &pascal(&field.name)), &mut nested);
            let mut own = field_name(&field.name);
            while !taken.insert(own.clone()) {
                own.push('_');
            }
            if own.trim_start_matches("r#") != field.name {
                let _ = writeln!(fields, "    #[serde(rename = {:?})]", field.name);
            }
            let _ = writeln!(fields, "    pub {own}: {ty},");
        }
        let _ = write!(self.text, "\n{DERIVES}pub struct {name} {{\n{fields}}}\n");
        nested.iter().for_each(|nested| self.nested(nested));
    }

    fn nested(&mut self, nested: &Nested<'_>) {
        match nested {
            Nested::Object(name, object) => self.object(name, object),
            Nested::Enum(name, values) => {
                let derives = DERIVES.replace("PartialEq,", "Copy, PartialEq, Eq,");
                let _ = write!(self.text, "\n{derives}pub enum {name} {{\n");
                let mut taken = BTreeSet::new();
                for value in *values {
                    let mut own = pascal(value);
                    if !is_identifier(&own) || own == "Self" {
                        own = format!("Value{own}");
                    }
                    while !taken.insert(own.clone()) {
                        own.push('_');
                    }
                    let _ = write!(self.text, "    #[serde(rename = {value:?})]\n    {own},\n");
                }
                self.text.push_str("}\n");
            }
        }
    }

    /// Returns a type. Objects and enums within it get the name `name`.
    fn type_text<'t>(&mut self, ty: &'t Type, name: &str, nested: &mut Vec<Nested<'t>>) -> String {
        match ty {
            Type::String | Type::Date | Type::Datetime => "String".to_owned(),
            Type::Integer => "i64".to_owned(),
            Type::Number => "f64".to_owned(),
            Type::Boolean => "bool".to_owned(),
            Type::Json => "syncline_sdk::serde_json::Value".to_owned(),
            Type::Enum(values) => {
                let name = self.free_name(name);
                nested.push(Nested::Enum(name.clone(), values));
                name
            }
            Type::Array(inner) => format!("Vec<{}>", self.type_text(inner, name, nested)),
            Type::Object(object) => {
                let name = self.free_name(name);
                nested.push(Nested::Object(name.clone(), object));
                name
            }
            Type::Model(model) if self.contains_itself(model) => format!("Box<{}>", pascal(model.as_str())),
            Type::Model(model) => pascal(model.as_str()),
            Type::Optional(inner) => format!("Option<{}>", self.type_text(inner, name, nested)),
        }
    }

    fn free_name(&mut self, name: &str) -> String {
        let mut name = name.to_owned();
        while !self.names.insert(name.clone()) {
            name.push('_');
        }
        name
    }

    /// Whether a value of the model can contain another one, so that its size would not be known without a `Box`.
    fn contains_itself(&self, model: &ModelName) -> bool {
        let mut seen = BTreeSet::new();
        let mut open = vec![model];
        while let Some(name) = open.pop() {
            let Some(Model::Object(object)) = self.models.get(name) else { continue };
            for inner in object.fields.iter().flat_map(|field| field.ty.models()) {
                if inner == model {
                    return true;
                }
                if seen.insert(inner) {
                    open.push(inner);
                }
            }
        }
        false
    }
}

fn field_name(name: &str) -> String {
    let own = identifier(name);
    match own.as_str() {
        own if SPECIAL.contains(&own) => format!("{own}_"),
        own if KEYWORDS.contains(&own) => format!("r#{own}"),
        own => own.to_owned(),
    }
}
