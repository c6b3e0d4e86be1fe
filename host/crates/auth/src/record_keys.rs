//! Caches the decrypted keys that encrypt payloads of an environment's records.

use std::sync::Arc;

use sqlx::PgConnection;

use super::{Environment, EnvironmentError, Environments};
use syncline_crypto::{AssociatedData, CryptoError, RecordKeys, new_record_key};
use syncline_store::{environments, record_keys};
use syncline_types::ids::EnvironmentPk;

const FIRST: i32 = 1;

impl Environments {
    /// Returns the record keys. They are empty until a model with `encrypt = true` is deployed.
    pub async fn record_keys(&self, pk: EnvironmentPk) -> Result<Arc<RecordKeys>, EnvironmentError> {
        self.record_keys.get(pk, self.read_record_keys(pk)).await
    }

    /// Returns the record keys. Reads them again if the key with this number is missing, because another host may have
    /// just created it.
    pub async fn record_keys_with(
        &self,
        pk: EnvironmentPk,
        number: i32,
    ) -> Result<Arc<RecordKeys>, EnvironmentError> {
        let keys = self.record_keys(pk).await?;
        if keys.has(number) {
            return Ok(keys);
        }
        self.record_keys.invalidate();
        self.record_keys(pk).await
    }

    /// Returns the record keys, and creates the first one if there are none.
    pub async fn ensure_record_keys(&self, pk: EnvironmentPk) -> Result<Arc<RecordKeys>, EnvironmentError> {
        let keys = self.record_keys(pk).await?;
        if !keys.is_empty() {
            return Ok(keys);
        }
        let environment = self.get(pk).await?;
        let mut tx = self.store.begin().await?;
        // The lock ensures that only one host creates the key.
        if !environments::lock(&mut tx, pk).await? {
            return Err(EnvironmentError::Unknown(pk));
        }
        if record_keys::list(&mut tx, pk).await?.is_empty() {
            let row = row_name(&environment, FIRST);
            let sealed = environment.data_key.seal(associated_data(&row), &new_record_key());
            record_keys::create(&mut tx, pk, FIRST, &sealed).await?;
        }
        tx.commit().await?;
        self.record_keys.invalidate();
        self.record_keys(pk).await
    }

    async fn read_record_keys(&self, pk: EnvironmentPk) -> Result<Arc<RecordKeys>, EnvironmentError> {
        let environment = self.get(pk).await?;
        open_all(&mut *self.store.connect().await?, &environment).await.map(Arc::new)
    }
}

async fn open_all(
    conn: &mut PgConnection,
    environment: &Environment,
) -> Result<RecordKeys, EnvironmentError> {
    let stored = record_keys::list(conn, environment.pk).await?;
    let opened = stored.iter().map(|stored| {
        let row = row_name(environment, stored.number);
        Ok((stored.number, environment.data_key.open(associated_data(&row), &stored.sealed_key)?))
    });
    opened
        .collect::<Result<Vec<_>, CryptoError>>()
        .and_then(|opened| RecordKeys::new(opened.iter().map(|(number, bytes)| (*number, bytes.as_slice()))))
        .map_err(|source| EnvironmentError::RecordKey { environment: environment.name.clone(), source })
}

fn row_name(environment: &Environment, number: i32) -> String {
    format!("{}/{number}", environment.id)
}

fn associated_data(row: &str) -> AssociatedData<'_> {
    AssociatedData { column: "record_keys.sealed_key", row }
}
