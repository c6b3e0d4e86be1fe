//! The settings of an integration, in addition to its app credentials.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};
use uuid::Uuid;
use zeroize::Zeroizing;

use syncline_crypto::{AssociatedData, CryptoError, DataKey};
use syncline_types::secret::Secret;

/// Two maps of texts. Every value may be a secret, so clients can set the values but never read them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct IntegrationSettings {
    #[serde(default, serialize_with = "serialize_texts")]
    pub integration_config: Texts,
    #[serde(default, serialize_with = "serialize_texts")]
    pub custom: Texts,
}

pub type Texts = BTreeMap<String, Secret<String>>;

#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("the stored settings of the integration cannot be decrypted")]
    Sealed(#[from] CryptoError),
    #[error("the stored settings of the integration have a format that this version does not know")]
    Unreadable,
}

impl IntegrationSettings {
    pub fn is_empty(&self) -> bool {
        self.integration_config.is_empty() && self.custom.is_empty()
    }

    /// Overwrites the values whose keys `newer` contains, and keeps the others.
    pub fn merge(&mut self, newer: Self) {
        self.integration_config.extend(newer.integration_config);
        self.custom.extend(newer.custom);
    }

    /// Encrypts the settings for the row of the integration with this id.
    pub fn seal(&self, key: &DataKey, integration: Uuid) -> Vec<u8> {
        let plain = serde_json::to_vec(self).expect("settings can be represented as JSON");
        key.seal(associated_data(&integration.to_string()), &Zeroizing::new(plain))
    }

    /// Decrypts the result of [`seal`](Self::seal). Fails for a value that was encrypted for another row.
    pub fn open(key: &DataKey, integration: Uuid, sealed: &[u8]) -> Result<Self, SettingsError> {
        let opened = key.open(associated_data(&integration.to_string()), sealed)?;
        serde_json::from_slice(&opened).map_err(|_| SettingsError::Unreadable)
    }
}

fn associated_data(integration: &str) -> AssociatedData<'_> {
    AssociatedData { column: "integrations.sealed_settings", row: integration }
}

fn serialize_texts<S: Serializer>(texts: &Texts, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(texts.iter().map(|(name, value)| (name, value.expose())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_crypto::MasterKeys;

    fn settings(pairs: &[(&str, &str)]) -> IntegrationSettings {
        let texts = pairs.iter().map(|(name, value)| ((*name).to_owned(), Secret::from(*value))).collect();
        IntegrationSettings { integration_config: texts, custom: Texts::new() }
    }

    #[test]
    fn settings_are_merged_by_key_and_decrypt_only_in_their_own_row() {
        let keys = MasterKeys::parse(&MasterKeys::generate("a")).unwrap();
        let (key, _) = keys.new_data_key("environment");
        let (own, other) = (Uuid::new_v4(), Uuid::new_v4());
        let mut merged = settings(&[("a", "1"), ("b", "2")]);
        merged.merge(settings(&[("b", "3"), ("c", "4")]));
        let sealed = merged.seal(&key, own);
        let opened = IntegrationSettings::open(&key, own, &sealed).unwrap();
        let values: Vec<&str> =
            opened.integration_config.values().map(|value| value.expose().as_str()).collect();
        assert_eq!(values, ["1", "3", "4"]);
        assert!(IntegrationSettings::open(&key, other, &sealed).is_err());
    }
}
