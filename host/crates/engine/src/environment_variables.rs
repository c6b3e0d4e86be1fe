//! Environment variables, encrypted with the environment's key.

use syncline_auth::Environment;
use syncline_crypto::{AssociatedData, CryptoError};
use syncline_store::{Store, environment_variables};
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

    /// Returns names and values, sorted by name.
    pub async fn list(
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
    ) -> Result<(), EnvironmentVariableError> {
        let name = name.as_str();
        let sealed =
            environment.data_key.seal(associated_data(&row(environment, name)), value.as_str().as_bytes());
        environment_variables::set(&mut *self.store.connect().await?, environment.pk, name, &sealed).await?;
        Ok(())
    }

    /// Returns `false` if there is no variable with this name.
    pub async fn delete(
        &self,
        environment: &Environment,
        name: &VariableName,
    ) -> Result<bool, EnvironmentVariableError> {
        Ok(environment_variables::delete(&mut *self.store.connect().await?, environment.pk, name.as_str())
            .await?)
    }
}

fn row(environment: &Environment, name: &str) -> String {
    format!("{}/{name}", environment.id)
}

fn associated_data(row: &str) -> AssociatedData<'_> {
    AssociatedData { column: "environment_variables.sealed_value", row }
}
