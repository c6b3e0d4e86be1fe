//! Finds what a deployment changes about its bundle's models, and how that affects the stored records.

use std::collections::BTreeMap;

use crate::deployments::planned_change::PlannedChange;
use syncline_config::SyncConfig;
use syncline_model::{Keeping, Model, ObjectType, OnBadRecord, Type};
use syncline_store::deployments::LiveDeployment;
use syncline_types::ids::ModelName;

/// Returns the changes, and warnings for those who read or save the records.
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
                "the active version cannot be parsed, so this plan does not show changes of its models";
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
        warnings.push(format!("model `{name}` is no longer declared; syncs can no longer save its records"));
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
                .push(format!("records of model `{name}` must match another schema from now on: `{file}`"));
        }
        (Model::Schema { file, .. }, Model::Object(_)) => {
            let fields = "the fields that the file declares";
            warnings.push(format!(
                "records of model `{name}` must have {fields} from now on, instead of `{file}`"
            ));
        }
    }
}

/// `within` is the path of the object, such as `address.`.
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
        let (old_type, new_type) = (field.ty.to_string(), now.to_string());
        match (object_in(&field.ty), object_in(now)) {
            (Some(old), Some(new)) if old_type == new_type => {
                compare_fields(name, &format!("{path}."), old, new, warnings);
            }
            _ if field.ty != *now => warnings.push(format!(
                "`{path}` of model `{name}` changes from `{old_type}` to `{new_type}`; stored records change when \
                 they are saved again"
            )),
            _ => {}
        }
    }
    let is_required = |ty: &Type| !matches!(ty, Type::Optional(_));
    for field in new.fields.iter().filter(|field| !before.contains_key(&field.name) && is_required(&field.ty))
    {
        warnings.push(format!(
            "`{within}{}` of model `{name}` is new, and records without it are rejected; add `?` to its type if it may \
             be absent",
            field.name
        ));
    }
    if new.strict && !old.strict {
        let place = within.strip_suffix('.').map_or_else(String::new, |path| format!(" in `{path}`"));
        warnings.push(format!(
            "model `{name}` becomes strict{place}: records with undeclared fields are rejected"
        ));
    }
}

/// Returns the object type of a value, or of the items of a list.
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
            "payloads of model `{name}` will be encrypted; stored payloads stay unencrypted until they are saved \
             again"
        )),
        (true, false) => warnings.push(format!(
            "payloads of model `{name}` will no longer be encrypted; stored payloads stay encrypted until they are \
             saved again"
        )),
        _ => {}
    }
    match (old.on_bad_record, new.on_bad_record) {
        (OnBadRecord::Fail, OnBadRecord::SetAside) => warnings.push(format!(
            "a record that does not match model `{name}` will be set aside, instead of failing its batch"
        )),
        (OnBadRecord::SetAside, OnBadRecord::Fail) => warnings.push(format!(
            "a record that does not match model `{name}` will fail its batch, instead of being set aside"
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

    /// Returns the warnings about changed lines of a model. Panics if nothing changed.
    fn warnings(before: &str, after: &str) -> Vec<String> {
        let model = |lines: &str| config(&format!("[models.Item]\n{lines}\n"));
        let (changes, warnings) = compare(&model(before), &model(after));
        assert_eq!(changes, [change("update", &"Item".parse().unwrap())], "{before} to {after}");
        warnings
    }

    #[test]
    fn a_breaking_change_of_a_model_has_a_warning_that_explains_it() {
        let id = "id = \"string\"";
        for (before, after, warning) in [
            ("", "n = \"integer\"", "`n` of model `Item` is new, and records without it are rejected"),
            ("n = \"integer\"", "", "model `Item` no longer declares `n`"),
            (
                "n = \"integer?\"",
                "n = \"integer\"",
                "`n` of model `Item` changes from `integer?` to `integer`",
            ),
            ("", "strict = true", "model `Item` becomes strict: records with undeclared fields are rejected"),
            ("", "encrypt = true", "payloads of model `Item` will be encrypted"),
            ("encrypt = true", "", "payloads of model `Item` will no longer be encrypted"),
            (
                "",
                "on_bad_record = \"set_aside\"",
                "a record that does not match model `Item` will be set aside",
            ),
            (
                "on_bad_record = \"set_aside\"",
                "",
                "a record that does not match model `Item` will fail its batch",
            ),
            (
                "a = [{ b = \"string\" }]",
                "a = [{ b = \"date\" }]",
                "`a.b` of model `Item` changes from `string` to `date`",
            ),
            ("a = {}", "a = { strict = true }", "model `Item` becomes strict in `a`"),
            ("a = {}", "a = \"string\"", "`a` of model `Item` changes from `object` to `string`"),
        ] {
            let found = warnings(&format!("{id}\n{before}"), &format!("{id}\n{after}"));
            assert!(found.len() == 1 && found[0].starts_with(warning), "{before} to {after}: {found:?}");
        }
        let (one, other) = ("schema = \"one.json\"", "schema = \"other.json\"");
        assert_eq!(
            warnings(one, other),
            ["records of model `Item` must match another schema from now on: `other.json`"]
        );
        assert_eq!(
            warnings(id, other),
            ["records of model `Item` must match another schema from now on: `other.json`"]
        );
        assert!(warnings(one, id)[0].starts_with("records of model `Item` must have the fields"));
    }

    #[test]
    fn a_compatible_change_of_a_model_has_no_warning() {
        assert!(warnings("id = \"string\"", "id = \"string\"\nn = \"integer?\"").is_empty());
        assert!(warnings("id = \"string\"\nstrict = true", "id = \"string\"").is_empty());
    }

    #[test]
    fn added_and_removed_models_are_listed() {
        let (before, after) =
            (config("[models.Old]\n[models.Same]\n"), config("[models.New]\n[models.Same]\n"));
        let (changes, warnings) = compare(&before, &after);
        let of = |word, name: &str| change(word, &name.parse().unwrap());
        assert_eq!(changes, [of("add", "New"), of("remove", "Old")]);
        assert_eq!(warnings, ["model `Old` is no longer declared; syncs can no longer save its records"]);
        assert_eq!(compare(&before, &before), (Vec::new(), Vec::new()));
    }
}
