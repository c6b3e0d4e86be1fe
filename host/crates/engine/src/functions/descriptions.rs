//! Descriptions of the deployed functions, for clients.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value, json};

use crate::functions::action_tools::{member_schema, object_schema};
use crate::functions::{FunctionSpec, Functions, StoredFunction};
use syncline_config::{FunctionKind, LifecycleEvent, SyncConfig};
use syncline_model::{Models, Type, json_schema};
use syncline_store::deployments::{self, LiveDeployment, NamedFunction};
use syncline_types::ids::{
    DeploymentPk, EnvironmentPk, FunctionName, FunctionPk, IntegrationKey, ModelName, ProviderSlug,
};

/// A deployed function.
#[derive(Debug, Clone)]
pub struct FunctionDescription {
    pub id: FunctionPk,
    pub integration: IntegrationKey,
    pub provider: ProviderSlug,
    pub name: FunctionName,
    pub kind: FunctionKind,
    pub description: Option<String>,
    pub deployed_at: DateTime<Utc>,
    /// The bundle that deployed the function, and its active version.
    pub bundle: String,
    pub version: i32,
    /// The models that the function saves.
    pub models: Vec<ModelName>,
    /// The types of the input and of the results. The results of a sync are its models.
    pub input: Option<String>,
    pub returns: Vec<String>,
    /// A JSON Schema with the models of these types under `$defs`.
    pub schema: Value,
    /// A JSON Schema of an object with the input.
    pub parameters: Value,
    /// The frequency of a sync. `None` for other functions.
    pub frequency: Option<String>,
    pub auto_start: bool,
    pub track_deletes: bool,
    /// The event types that a webhook function handles. Empty for other functions.
    pub subscriptions: Vec<String>,
    /// The event of a lifecycle function. `None` for other functions.
    pub event: Option<LifecycleEvent>,
}

impl Functions {
    /// Describes all functions that are deployed in an environment, sorted by integration and name.
    pub async fn describe(&self, environment: EnvironmentPk) -> anyhow::Result<Vec<FunctionDescription>> {
        let mut snapshot = self.store.begin_snapshot().await?;
        let active = deployments::list_active_of(&mut snapshot, &[environment]).await?;
        let listed = deployments::list_named_functions(&mut snapshot, environment).await?;
        snapshot.commit().await?;
        let mut bundles: HashMap<DeploymentPk, (LiveDeployment, Models)> = HashMap::new();
        for deployment in active {
            if let Ok(config) = serde_json::from_str::<SyncConfig>(&deployment.config) {
                bundles.insert(deployment.pk, (deployment, config.models));
            }
        }
        let mut described = Vec::with_capacity(listed.len());
        for row in listed {
            let Some((deployment, models)) = bundles.get(&row.deployment) else { continue };
            let Some(stored) = StoredFunction::read(&row.spec) else { continue };
            described.push(describe(row, stored.spec, deployment, models));
        }
        Ok(described)
    }
}

fn describe(
    row: NamedFunction,
    spec: FunctionSpec,
    deployment: &LiveDeployment,
    models: &Models,
) -> FunctionDescription {
    let mut function = FunctionDescription {
        id: row.pk,
        integration: row.integration,
        provider: row.provider,
        name: row.name,
        kind: FunctionKind::Sync,
        description: None,
        deployed_at: row.activated_at,
        bundle: deployment.bundle_name.clone(),
        version: deployment.version,
        models: Vec::new(),
        input: None,
        returns: Vec::new(),
        schema: Value::Null,
        parameters: parameters(None, models),
        frequency: None,
        auto_start: false,
        track_deletes: false,
        subscriptions: Vec::new(),
        event: None,
    };
    match spec {
        FunctionSpec::Sync(spec) => {
            function.models = spec.models.clone();
            let returned: Vec<Type> = spec.models.into_iter().map(Type::Model).collect();
            function.description = spec.description;
            function.schema = schema_of(&returned, models);
            function.returns = returned.iter().map(Type::to_string).collect();
            function.frequency = Some(spec.frequency.to_string());
            function.auto_start = spec.auto_start;
            function.track_deletes = spec.track_deletes;
        }
        FunctionSpec::Action(spec) => {
            let types: Vec<Type> = spec.input.iter().chain(&spec.output).cloned().collect();
            function.kind = FunctionKind::Action;
            function.models = spec.models;
            function.description = spec.description;
            function.schema = schema_of(&types, models);
            function.parameters = parameters(spec.input.as_ref(), models);
            function.input = spec.input.map(|ty| ty.to_string());
            function.returns = spec.output.map(|ty| ty.to_string()).into_iter().collect();
        }
        FunctionSpec::Webhook(spec) => {
            function.kind = FunctionKind::Webhook;
            function.models = spec.models;
            function.description = spec.description;
            function.subscriptions = spec.subscriptions;
        }
        FunctionSpec::Lifecycle(spec) => {
            function.kind = FunctionKind::Lifecycle;
            function.models = spec.models;
            function.description = spec.description;
            function.event = Some(spec.event);
        }
    }
    function
}

/// Returns the models that these types refer to, or null if there are none.
fn schema_of(types: &[Type], models: &Models) -> Value {
    let mut definitions = Map::new();
    for ty in types {
        if let Value::Object(named) = json_schema::of_type(ty, models)["$defs"].take() {
            definitions.extend(named);
        }
    }
    if definitions.is_empty() {
        return Value::Null;
    }
    json!({ "$schema": json_schema::DIALECT, "$defs": definitions })
}

/// Returns the schema of the input. An input that is not an object becomes the member `input` of an object.
fn parameters(input: Option<&Type>, models: &Models) -> Value {
    let Some(ty) = input else { return json!({ "type": "object", "properties": {}, "required": [] }) };
    object_schema(ty, models).unwrap_or_else(|| member_schema(ty, models))
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_model::{Field, Model, ObjectType};

    #[test]
    fn parameters_are_the_input_or_an_object_that_contains_it() {
        let order =
            ObjectType { fields: vec![Field { name: "id".to_owned(), ty: Type::String }], strict: false };
        let models = Models::from([("Order".parse().unwrap(), Model::Object(order))]);
        let of_model = parameters(Some(&Type::Model("Order".parse().unwrap())), &models);
        assert_eq!(of_model["properties"], json!({ "id": { "type": "string" } }));
        assert_eq!(of_model["required"], json!(["id"]));
        assert_eq!(
            parameters(Some(&Type::Integer), &models),
            json!({ "type": "object", "properties": { "input": { "type": "integer" } }, "required": ["input"] })
        );
        assert_eq!(parameters(None, &models), json!({ "type": "object", "properties": {}, "required": [] }));
    }
}
