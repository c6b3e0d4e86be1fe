//! Environment variables, encrypted with the environment's key.

use serde_json::json;

use syncline_auth::Environment;
use syncline_crypto::{AssociatedData, CryptoError};
use syncline_store::audit_log::{self, NewEntry};
use syncline_store::{Store, environment_variables};
use syncline_types::actor::Actor;
use syncline_types::audit_log::{AuditAction, TargetKind};
use syncline_types::ids::VariableName;

const MAX_VALUE_BYTES: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum EnvironmentVariableError {
    #[error("environment variables could not be read or written")]
    Store(#[from] sqlx::Error),
    #[error("the environment variable `{name}` cannot be decrypted")]
    Sealed { name: String, source: CryptoError },
}

/// Why a text is not a valid value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidVariableValue {
    #[error("must be at most {MAX_VALUE_BYTES} bytes long")]
    TooLong,
    #[error("must not contain a NUL character")]
    Nul,
}

/// A valid value of a variable.
pub struct VariableValue(String);

impl VariableValue {
    pub fn new(text: String) -> Result<Self, InvalidVariableValue> {
        if text.len() > MAX_VALUE_BYTES {
            return Err(InvalidVariableValue::TooLong);
        }
        if text.contains('\0') {
            return Err(InvalidVariableValue::Nul);
        }
        Ok(Self(text))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Stores the variables of environments.
pub struct EnvironmentVariables {
    store: Store,
}

impl EnvironmentVariables {
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    /// Returns names and values for a client, sorted by name, and records that the client has read them.
    pub async fn reveal(
        &self,
        environment: &Environment,
        actor: &Actor,
    ) -> Result<Vec<(String, String)>, EnvironmentVariableError> {
        let variables = self.list(environment).await?;
        let names: Vec<&str> = variables.iter().map(|(name, _)| name.as_str()).collect();
        let entry = NewEntry::of_environment(environment.pk, AuditAction::CredentialsRead)
            .with(json!({ "environment_variables": names }));
        audit_log::write(&mut *self.store.connect().await?, actor, &entry).await?;
        Ok(variables)
    }

    /// Returns the names, sorted.
    pub async fn names(&self, environment: &Environment) -> Result<Vec<String>, EnvironmentVariableError> {
        let listed = environment_variables::list(&mut *self.store.connect().await?, environment.pk).await?;
        Ok(listed.into_iter().map(|(name, _)| name).collect())
    }

    /// Returns names and values for functions, sorted by name.
    pub(crate) async fn list(
        &self,
        environment: &Environment,
    ) -> Result<Vec<(String, String)>, EnvironmentVariableError> {
        let sealed = environment_variables::list(&mut *self.store.connect().await?, environment.pk).await?;
        sealed
            .into_iter()
            .map(|(name, sealed_value)| {
                let opened =
                    environment.data_key.open(associated_data(&row(environment, &name)), &sealed_value);
                match opened {
                    Ok(value) => Ok((name, String::from_utf8_lossy(&value).into_owned())),
                    Err(source) => Err(EnvironmentVariableError::Sealed { name, source }),
                }
            })
            .collect()
    }

    pub async fn set(
        &self,
        environment: &Environment,
        name: &VariableName,
        value: &VariableValue,
        actor: &Actor,
    ) -> Result<(), EnvironmentVariableError> {
        let name = name.as_str();
        let sealed =
            environment.data_key.seal(associated_data(&row(environment, name)), value.as_str().as_bytes());
        let mut tx = self.store.begin().await?;
        environment_variables::set(&mut tx, environment.pk, name, &sealed).await?;
        let action = AuditAction::EnvironmentVariableSet;
        let entry = NewEntry::new(environment.pk, action, TargetKind::EnvironmentVariable, name);
        audit_log::write(&mut tx, actor, &entry).await?;
        Ok(tx.commit().await?)
    }

    /// Returns `false` if there is no variable with this name.
    pub async fn delete(
        &self,
        environment: &Environment,
        name: &VariableName,
        actor: &Actor,
    ) -> Result<bool, EnvironmentVariableError> {
        let mut tx = self.store.begin().await?;
        if !environment_variables::delete(&mut tx, environment.pk, name.as_str()).await? {
            return Ok(false);
        }
        let action = AuditAction::EnvironmentVariableDeleted;
        let entry = NewEntry::new(environment.pk, action, TargetKind::EnvironmentVariable, name.as_str());
        audit_log::write(&mut tx, actor, &entry).await?;
        tx.commit().await?;
        Ok(true)
    }
}

fn row(environment: &Environment, name: &str) -> String {
    format!("{}/{name}", environment.id)
}

fn associated_data(row: &str) -> AssociatedData<'_> {
    AssociatedData { column: "environment_variables.sealed_value", row }
}
