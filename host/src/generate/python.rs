//! `models.py`: a dataclass for each model, and for each object within one.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::json;
use syncline_config::ConfigFile;
use syncline_model::{Model, ObjectType, Type};

use super::names::{identifier, is_identifier, pascal};
use super::{HEADER, models, required};

/// Names that a field cannot have: keywords, and the types that annotations name.
const RESERVED: [&str; 45] = [
    "False",
    "None",
    "True",
    "and",
    "as",
    "assert",
    "async",
    "await",
    "break",
    "class",
    "continue",
    "def",
    "del",
    "elif",
    "else",
    "except",
    "finally",
    "for",
    "from",
    "global",
    "if",
    "import",
    "in",
    "is",
    "lambda",
    "nonlocal",
    "not",
    "or",
    "pass",
    "raise",
    "return",
    "try",
    "while",
    "with",
    "yield",
    "str",
    "int",
    "float",
    "bool",
    "list",
    "dict",
    "Any",
    "Literal",
    "field",
    "dataclass",
];

pub fn generate(file: &ConfigFile) -> String {
    let mut writer = Writer {
        names: models(file).into_iter().map(|(name, _)| pascal(name.as_str())).collect(),
        definitions: Vec::new(),
        imports: BTreeSet::new(),
        has_dataclass: false,
        has_field: false,
    };
    for (name, model) in models(file) {
        match model {
            Model::Object(object) => writer.class(pascal(name.as_str()), object),
            Model::Schema { .. } => {
                writer.imports.insert("Any");
                writer.alias(&pascal(name.as_str()), "dict[str, Any]");
            }
        }
    }
    for action in file.config.integrations.iter().flat_map(|integration| &integration.actions) {
        for (suffix, ty) in [("Input", &action.input), ("Output", &action.output)] {
            let name = pascal(action.name.as_str()) + suffix;
            match ty {
                None | Some(Type::Model(_)) => {}
                Some(Type::Object(object)) => writer.class(name, object),
                Some(ty) => {
                    let mut nested = Vec::new();
                    let ty = writer.annotation(ty, &name, &mut nested);
                    writer.alias(&name, &ty);
                    nested.into_iter().for_each(|(name, object)| writer.class(name, &object));
                }
            }
        }
    }
    writer.finish()
}

struct Writer {
    /// The names of all classes.
    names: BTreeSet<String>,
    definitions: Vec<Definition>,
    /// What to import from `typing`.
    imports: BTreeSet<&'static str>,
    has_dataclass: bool,
    has_field: bool,
}

enum Definition {
    Class(String),
    Alias(String),
}

impl Writer {
    /// Adds a class, and the classes of the objects within it.
    fn class(&mut self, name: String, object: &ObjectType) {
        let mut text = format!("@dataclass(kw_only=True)\nclass {name}:\n");
        let mut nested = Vec::new();
        let mut taken = BTreeSet::new();
        for field in &object.fields {
            let ty = self.annotation(&field.ty, &(name.clone() + &pascal(&field.name)), &mut nested);
            let mut own = self.field_name(&field.name);
            while !taken.insert(own.clone()) {
                own.push('_');
            }
            let is_optional = required(&field.ty).1;
            let value = match (own == field.name, is_optional) {
                (true, false) => String::new(),
                (true, true) => " = None".to_owned(),
                (false, optional) => {
                    self.has_field = true;
                    let default = if optional { "default=None, " } else { "" };
                    format!(" = field({default}metadata={{\"json\": {}}})", quoted(&field.name))
                }
            };
            let _ = writeln!(text, "    {own}: {ty}{value}");
        }
        if object.fields.is_empty() {
            text.push_str("    pass\n");
        }
        self.has_dataclass = true;
        self.definitions.push(Definition::Class(text));
        nested.into_iter().for_each(|(name, object)| self.class(name, &object));
    }

    fn alias(&mut self, name: &str, ty: &str) {
        self.definitions.push(Definition::Alias(format!("{name} = {ty}\n")));
    }

    /// Returns the annotation of a type. Objects within it get the name `name`.
    fn annotation(&mut self, ty: &Type, name: &str, nested: &mut Vec<(String, ObjectType)>) -> String {
        match ty {
            Type::String | Type::Date | Type::Datetime => "str".to_owned(),
            Type::Integer => "int".to_owned(),
            Type::Number => "float".to_owned(),
            Type::Boolean => "bool".to_owned(),
            Type::Json => {
                self.imports.insert("Any");
                "Any".to_owned()
            }
            Type::Enum(values) => {
                self.imports.insert("Literal");
                let values: Vec<String> = values.iter().map(|value| quoted(value)).collect();
                format!("Literal[{}]", values.join(", "))
            }
            Type::Array(inner) => format!("list[{}]", self.annotation(inner, name, nested)),
            Type::Object(object) => {
                let mut name = name.to_owned();
                while !self.names.insert(name.clone()) {
                    name.push('_');
                }
                nested.push((name.clone(), object.clone()));
                name
            }
            Type::Model(name) => pascal(name.as_str()),
            Type::Optional(inner) if **inner == Type::Json => self.annotation(inner, name, nested),
            Type::Optional(inner) => format!("{} | None", self.annotation(inner, name, nested)),
        }
    }

    fn field_name(&self, name: &str) -> String {
        // Python changes names that begin with two underscores.
        let own = name.strip_prefix("__").map_or_else(|| identifier(name), identifier);
        let is_free = |own: &str| !RESERVED.contains(&own) && !self.names.contains(own) && is_identifier(own);
        if is_free(&own) { own } else { own + "_" }
    }

    fn finish(self) -> String {
        let mut text = format!(
            "# {HEADER}\n\"\"\"Models of syncline.toml.\"\"\"\n\nfrom __future__ import annotations\n"
        );
        if self.has_dataclass {
            let field = if self.has_field { ", field" } else { "" };
            let _ = write!(text, "\nfrom dataclasses import dataclass{field}\n");
        }
        if !self.imports.is_empty() {
            let before = if self.has_dataclass { "" } else { "\n" };
            let imports: Vec<&str> = self.imports.into_iter().collect();
            let _ = writeln!(text, "{before}from typing import {}", imports.join(", "));
        }
        let mut follows_alias = false;
        for (index, definition) in self.definitions.iter().enumerate() {
            let (definition, is_alias) = match definition {
                Definition::Class(text) => (text, false),
                Definition::Alias(text) => (text, true),
            };
            // One line between names, and two around classes. After the imports, a name needs one.
            text.push_str(if is_alias && (follows_alias || index == 0) { "\n" } else { "\n\n" });
            text.push_str(definition);
            follows_alias = is_alias;
        }
        text
    }
}

fn quoted(text: &str) -> String {
    json!(text).to_string()
}
