//! What a deployment changes about its bundle's models, and what that means for the records that are kept.

use std::collections::BTreeMap;

use crate::deployments::planned_change::PlannedChange;
use syncline_config::SyncConfig;
use syncline_model::{Keeping, Model, ObjectType, OnBadRecord, Type};
use syncline_store::deployments::LiveDeployment;
use syncline_types::ids::ModelName;

/// The changes, and what may surprise whoever reads the records or saves them.
pub(crate) fn model_changes(
    active: Option<&LiveDeployment>,
    after: &SyncConfig,
) -> (Vec<PlannedChange>, Vec<String>) {
    let Some(active) = active else {
        return (after.models.keys().map(|name| change("add", name)).collect(), Vec::new());
    };
    match serde_json::from_str(&active.config) {
        Ok(before) => compare(&before, after),
        Err(_) => {
            let warning =
                "the version that is active cannot be read, so what changes about its models is not known";
            (Vec::new(), vec![warning.to_owned()])
        }
    }
}

fn compare(before: &SyncConfig, after: &SyncConfig) -> (Vec<PlannedChange>, Vec<String>) {
    let (mut changes, mut warnings) = (Vec::new(), Vec::new());
    for (name, model) in &after.models {
        let Some(old) = before.models.get(name) else {
            changes.push(change("add", name));
            continue;
        };
        let keeping = |config: &SyncConfig| config.keeping.get(name).copied().unwrap_or_default();
        let (kept_before, kept_after) = (keeping(before), keeping(after));
        if old == model && kept_before == kept_after {
            continue;
        }
        changes.push(change("update", name));
        compare_models(name, old, model, &mut warnings);
        compare_keeping(name, kept_before, kept_after, &mut warnings);
    }
    for name in before.models.keys().filter(|name| !after.models.contains_key(*name)) {
        changes.push(change("remove", name));
        warnings.push(format!("model `{name}` is no longer declared; its records are not saved any more"));
    }
    (changes, warnings)
}

fn change(change: &'static str, model: &ModelName) -> PlannedChange {
    PlannedChange { change, kind: "model".to_owned(), integration: None, name: Some(model.to_string()) }
}

fn compare_models(name: &ModelName, old: &Model, new: &Model, warnings: &mut Vec<String>) {
    match (old, new) {
        (Model::Object(old), Model::Object(new)) => compare_fields(name, "", old, new, warnings),
        (Model::Schema { schema: old, .. }, Model::Schema { schema: new, .. }) if old == new => {}
        (_, Model::Schema { file, .. }) => {
            warnings
                .push(format!("records of model `{name}` must suit another schema from now on: `{file}`"));
        }
        (Model::Schema { file, .. }, Model::Object(_)) => {
            let fields = "the fields that the file declares";
            warnings.push(format!(
                "records of model `{name}` must have {fields} from now on, instead of `{file}`"
            ));
        }
    }
}

/// `within` leads to the object, such as `address.`.
fn compare_fields(
    name: &ModelName,
    within: &str,
    old: &ObjectType,
    new: &ObjectType,
    warnings: &mut Vec<String>,
) {
    let by_name = |object: &'_ ObjectType| -> BTreeMap<String, Type> {
        object.fields.iter().map(|field| (field.name.clone(), field.ty.clone())).collect()
    };
    let (before, after) = (by_name(old), by_name(new));
    for field in &old.fields {
        let path = format!("{within}{}", field.name);
        let Some(now) = after.get(&field.name) else {
            warnings.push(format!("model `{name}` no longer declares `{path}`"));
            continue;
        };
        let (was, becomes) = (field.ty.to_string(), now.to_string());
        match (object_in(&field.ty), object_in(now)) {
            (Some(old), Some(new)) if was == becomes => {
                compare_fields(name, &format!("{path}."), old, new, warnings);
            }
            _ if field.ty != *now => warnings.push(format!(
                "`{path}` of model `{name}` was `{was}` and becomes `{becomes}`; kept records change when they are saved again"
            )),
            _ => {}
        }
    }
    let is_required = |ty: &Type| !matches!(ty, Type::Optional(_));
    for field in new.fields.iter().filter(|field| !before.contains_key(&field.name) && is_required(&field.ty))
    {
        warnings.push(format!(
            "`{within}{}` of model `{name}` is new, and records without it are refused; write `?` behind its type if it may \
             be absent",
            field.name
        ));
    }
    if new.strict && !old.strict {
        let place = within.strip_suffix('.').map_or_else(String::new, |path| format!(" in `{path}`"));
        warnings.push(format!(
            "model `{name}` becomes strict{place}: records with undeclared fields are refused"
        ));
    }
}

/// The object that a type is, or is a list of.
fn object_in(ty: &Type) -> Option<&ObjectType> {
    match ty {
        Type::Object(object) => Some(object),
        Type::Array(inner) | Type::Optional(inner) => object_in(inner),
        _ => None,
    }
}

fn compare_keeping(name: &ModelName, old: Keeping, new: Keeping, warnings: &mut Vec<String>) {
    match (old.encrypt, new.encrypt) {
        (false, true) => warnings.push(format!(
            "payloads of model `{name}` will be sealed; those that are kept are not until they are saved again"
        )),
        (true, false) => warnings.push(format!(
            "payloads of model `{name}` will not be sealed any more; those that are kept are until they are saved again"
        )),
        _ => {}
    }
    match (old.on_bad_record, new.on_bad_record) {
        (OnBadRecord::Fail, OnBadRecord::SetAside) => warnings.push(format!(
            "a record that does not fit model `{name}` will be set aside, instead of failing its batch"
        )),
        (OnBadRecord::SetAside, OnBadRecord::Fail) => warnings.push(format!(
            "a record that does not fit model `{name}` will fail its batch, instead of being set aside"
        )),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use syncline_config::parse;

    fn config(models: &str) -> SyncConfig {
        let schemas = |path: &str| -> io::Result<String> { Ok(format!("{{\"title\": \"{path}\"}}")) };
        let file = parse("syncline.toml", &format!("name = \"shop\"\n{models}"), &schemas);
        file.unwrap_or_else(|mistakes| panic!("{mistakes}")).config
    }

    /// The warnings when the lines of a model change, of which there must be a change.
    fn warnings(before: &str, after: &str) -> Vec<String> {
        let model = |lines: &str| config(&format!("[models.Item]\n{lines}\n"));
        let (changes, warnings) = compare(&model(before), &model(after));
        assert_eq!(changes, [change("update", &"Item".parse().unwrap())], "{before} to {after}");
        warnings
    }

    #[test]
    fn what_changes_about_a_model_is_told_with_what_it_means() {
        let id = "id = \"string\"";
        for (before, after, warning) in [
            ("", "n = \"integer\"", "`n` of model `Item` is new, and records without it are refused"),
            ("n = \"integer\"", "", "model `Item` no longer declares `n`"),
            (
                "n = \"integer?\"",
                "n = \"integer\"",
                "`n` of model `Item` was `integer?` and becomes `integer`",
            ),
            ("", "strict = true", "model `Item` becomes strict: records with undeclared fields are refused"),
            ("", "encrypt = true", "payloads of model `Item` will be sealed"),
            ("encrypt = true", "", "payloads of model `Item` will not be sealed any more"),
            (
                "",
                "on_bad_record = \"set_aside\"",
                "a record that does not fit model `Item` will be set aside",
            ),
            (
                "on_bad_record = \"set_aside\"",
                "",
                "a record that does not fit model `Item` will fail its batch",
            ),
            (
                "a = [{ b = \"string\" }]",
                "a = [{ b = \"date\" }]",
                "`a.b` of model `Item` was `string` and becomes `date`",
            ),
            ("a = {}", "a = { strict = true }", "model `Item` becomes strict in `a`"),
            ("a = {}", "a = \"string\"", "`a` of model `Item` was `object` and becomes `string`"),
        ] {
            let told = warnings(&format!("{id}\n{before}"), &format!("{id}\n{after}"));
            assert!(told.len() == 1 && told[0].starts_with(warning), "{before} to {after}: {told:?}");
        }
        let (one, other) = ("schema = \"one.json\"", "schema = \"other.json\"");
        assert_eq!(
            warnings(one, other),
            ["records of model `Item` must suit another schema from now on: `other.json`"]
        );
        assert_eq!(
            warnings(id, other),
            ["records of model `Item` must suit another schema from now on: `other.json`"]
        );
        assert!(warnings(one, id)[0].starts_with("records of model `Item` must have the fields"));
    }

    #[test]
    fn what_harms_nobody_is_a_change_without_a_warning() {
        assert!(warnings("id = \"string\"", "id = \"string\"\nn = \"integer?\"").is_empty());
        assert!(warnings("id = \"string\"\nstrict = true", "id = \"string\"").is_empty());
    }

    #[test]
    fn models_come_and_go() {
        let (before, after) =
            (config("[models.Old]\n[models.Same]\n"), config("[models.New]\n[models.Same]\n"));
        let (changes, warnings) = compare(&before, &after);
        let of = |word, name: &str| change(word, &name.parse().unwrap());
        assert_eq!(changes, [of("add", "New"), of("remove", "Old")]);
        assert_eq!(warnings, ["model `Old` is no longer declared; its records are not saved any more"]);
        assert_eq!(compare(&before, &before), (Vec::new(), Vec::new()));
    }
}
