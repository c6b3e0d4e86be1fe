//! The models and functions of `syncline.toml`, and what the host refuses because of them.
//!
//! It reads only what a test needs. `syncline check` reports the mistakes of the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::state::failure;
use crate::bindings::syncline::integration::types::Failure;
use check::{Problem, is_accepted_id};
use schema::Schema;
use types::{ObjectType, Type};

mod check;
#[cfg(feature = "json-schemas")]
mod schema;
#[cfg(not(feature = "json-schemas"))]
#[path = "models/no_schema.rs"]
mod schema;
mod types;

const FILE_NAME: &str = "syncline.toml";
/// The table of each kind of function in an integration.
const TABLES: [(&str, &str); 4] =
    [("sync", "syncs"), ("action", "actions"), ("webhook", "webhooks"), ("lifecycle", "lifecycle")];

pub struct Models {
    path: PathBuf,
    models: BTreeMap<String, Model>,
    /// By kind and name.
    functions: BTreeMap<(String, String), Function>,
    /// Kind and name of the function that the test calls.
    current: Option<(String, String)>,
}

/// The definition of a model.
enum Model {
    Object(ObjectType),
    /// The author's own JSON Schema.
    Schema(Schema),
}

struct Function {
    models: Vec<String>,
    input: Option<Type>,
    output: Option<Type>,
}

impl Models {
    /// Reads the file of the package that is tested, from its folder or a folder above it.
    pub fn of_project() -> Result<Self, String> {
        let folder = match std::env::var_os("CARGO_MANIFEST_DIR") {
            Some(folder) => PathBuf::from(folder),
            None => std::env::current_dir().map_err(|error| format!("no current folder: {error}"))?,
        };
        let path = folder.ancestors().map(|folder| folder.join(FILE_NAME)).find(|path| path.is_file());
        let path = path.ok_or_else(|| {
            let folder = folder.display();
            format!(
                "there is no {FILE_NAME} in {folder} or a folder above it; pass its path to \
                 `Host::for_config`, or use `Host::new` to validate nothing"
            )
        })?;
        Self::read(&path)
    }

    /// Reads a file. The error is a sentence that names it.
    pub fn read(path: &Path) -> Result<Self, String> {
        let refuse = |problem: String| format!("{}: {problem}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
        let file: Value = toml::from_str(&text).map_err(|error| refuse(error.to_string()))?;
        let mut read = Self {
            path: path.to_owned(),
            models: BTreeMap::new(),
            functions: BTreeMap::new(),
            current: None,
        };
        for (name, table) in members(&file["models"]) {
            let model = read.model(table).map_err(|problem| refuse(format!("model `{name}`: {problem}")))?;
            read.models.insert(name.clone(), model);
        }
        for (key, integration) in members(&file["integrations"]) {
            for (kind, functions) in TABLES {
                for (name, table) in members(&integration[functions]) {
                    let function = Function::read(table).map_err(|problem| {
                        refuse(format!("{kind} `{name}` of integration `{key}`: {problem}"))
                    })?;
                    read.functions.entry((kind.to_owned(), name.clone())).or_insert(function);
                }
            }
        }
        Ok(read)
    }

    /// Starts the call of a function. Until its end, the function may use only the models that it declares.
    pub fn begin(&mut self, kind: &str, name: &str) -> Result<(), String> {
        let function = (kind.to_owned(), name.to_owned());
        if !self.functions.contains_key(&function) {
            return Err(format!("{} has no {kind} `{name}`", self.path.display()));
        }
        self.current = Some(function);
        Ok(())
    }

    pub fn end(&mut self) {
        self.current = None;
    }

    pub fn check_input(&self, input: &Value) -> Result<(), Failure> {
        let expected = self.function().and_then(|function| function.input.as_ref());
        let what = "the input does not match the action's input model";
        self.check_value(expected, input, "invalid-input", what)
    }

    pub fn check_output(&self, output: &Value) -> Result<(), Failure> {
        let expected = self.function().and_then(|function| function.output.as_ref());
        let what = "the output does not match the action's output model";
        self.check_value(expected, output, "invalid-output", what)
    }

    /// Checks that the function declares the model, or, outside of a call, that the file does.
    pub fn check_model(&self, model: &str) -> Result<(), Failure> {
        let message = match self.function() {
            Some(function) if function.models.iter().any(|declared| declared == model) => return Ok(()),
            Some(Function { models, .. }) if models.is_empty() => {
                format!("the function saves `{model}`, but it declares no models")
            }
            Some(Function { models, .. }) => {
                let declared: Vec<_> = models.iter().map(|declared| format!("`{declared}`")).collect();
                format!("the function saves `{model}`, but it declares only {}", declared.join(", "))
            }
            None if self.models.contains_key(model) => return Ok(()),
            None => format!("{} has no model `{model}`", self.path.display()),
        };
        Err(failure("unknown-model", &message))
    }

    /// Checks the records of a batch: index, id and payload of each. The message has the form of the real host's.
    pub fn check_records(&self, model: &str, records: &[(usize, String, Value)]) -> Result<(), Failure> {
        let mut refused = records.iter().filter_map(|(index, id, record)| {
            let problems = self.record_problems(model, record);
            (!problems.is_empty()).then_some((index, id, problems))
        });
        let Some((index, id, problems)) = refused.next() else { return Ok(()) };
        let mut details = vec![json!({ "index": index, "id": id, "problems": listed(&problems) })];
        details.extend(
            refused.map(
                |(index, id, problems)| json!({ "index": index, "id": id, "problems": listed(&problems) }),
            ),
        );
        let others = match details.len() - 1 {
            0 => String::new(),
            more => format!("; {more} more records of the batch are not valid"),
        };
        let problems = join(&problems);
        let message = format!(
            "record {index} (`{id}`) does not match model `{model}`: {problems}{others}; the batch was not saved"
        );
        Err(Failure {
            details: Some(Value::Array(details).to_string()),
            ..failure("invalid-records", &message)
        })
    }

    fn function(&self) -> Option<&Function> {
        self.functions.get(self.current.as_ref()?)
    }

    fn check_value(
        &self,
        expected: Option<&Type>,
        value: &Value,
        code: &str,
        what: &str,
    ) -> Result<(), Failure> {
        let problems = expected.map(|expected| self.problems(expected, value)).unwrap_or_default();
        if problems.is_empty() {
            return Ok(());
        }
        let message = format!("{what}: {}", join(&problems));
        Err(Failure { details: Some(listed(&problems).to_string()), ..failure(code, &message) })
    }

    /// Returns why a record cannot be saved. The type of its `id` is lenient, as the real host stores every id as text.
    fn record_problems(&self, model: &str, record: &Value) -> Vec<Problem> {
        match self.models.get(model) {
            Some(Model::Object(object)) => {
                let mut problems = self.object_problems(object, record);
                let declared = object.fields.iter().find(|(name, _)| name == "id").map(|(_, ty)| ty);
                if declared.is_some_and(|declared| is_accepted_id(declared, &record["id"])) {
                    problems.retain(|problem| problem.path != "/id");
                }
                problems
            }
            Some(Model::Schema(schema)) => schema.record_problems(record),
            None => Vec::new(),
        }
    }

    fn model(&self, table: &Value) -> Result<Model, String> {
        let Some(file) = table["schema"].as_str().filter(|file| file.ends_with(".json")) else {
            return ObjectType::read(table, true).map(Model::Object);
        };
        let path = self.path.parent().unwrap_or(Path::new("")).join(file);
        let refuse = |problem: String| format!("`{file}`: {problem}");
        let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
        let schema = serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))?;
        Schema::compile(&schema).map(Model::Schema).map_err(refuse)
    }
}

impl Function {
    fn read(table: &Value) -> Result<Self, String> {
        let several = table["models"].as_array().into_iter().flatten();
        let models = [&table["model"]].into_iter().chain(several).filter_map(Value::as_str);
        let ty = |key: &str| table.get(key).map(Type::read).transpose();
        Ok(Self { models: models.map(str::to_owned).collect(), input: ty("input")?, output: ty("output")? })
    }
}

/// Returns the members of a table. A missing table has none.
fn members(table: &Value) -> impl Iterator<Item = (&String, &Value)> {
    table.as_object().into_iter().flat_map(Map::iter)
}

fn join(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn listed(problems: &[Problem]) -> Value {
    problems.iter().map(|problem| json!({ "path": problem.path, "problem": problem.problem })).collect()
}
