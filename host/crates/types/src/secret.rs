//! A value that must not be disclosed. It is printed as `***`, and its memory is wiped when it is dropped.

mod mask;

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroize;

pub use self::mask::Mask;

/// Holds a secret. It implements neither `Display` nor `Serialize`, so that it cannot leak into a log line, an error
/// message or an answer. Code that needs the value calls [`Secret::expose`].
#[derive(Clone)]
pub struct Secret<T: Zeroize>(T);

impl<T: Zeroize> Secret<T> {
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// Returns the secret value. Do not keep the value longer than necessary.
    pub fn expose(&self) -> &T {
        &self.0
    }
}

impl<T: Zeroize> Drop for Secret<T> {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl<T: Zeroize> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl<T: Zeroize> From<T> for Secret<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

impl From<&str> for Secret<String> {
    fn from(value: &str) -> Self {
        Self(value.to_owned())
    }
}

impl<'de, T: Zeroize + Deserialize<'de>> Deserialize<'de> for Secret<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self)
    }
}

/// Serializes the secret value. Use it with `#[serde(serialize_with)]` only for data that is encrypted right
/// afterwards.
pub fn serialize_exposed<T: Zeroize + Serialize, S: Serializer>(
    secret: &Secret<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    secret.expose().serialize(serializer)
}

/// Serializes an optional secret like [`serialize_exposed`].
pub fn serialize_exposed_option<T: Zeroize + Serialize, S: Serializer>(
    secret: &Option<Secret<T>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(Secret::expose).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_secrets_are_printed_as_stars() {
        #[derive(Debug)]
        #[expect(dead_code, reason = "only printed")]
        struct Login {
            user: &'static str,
            password: Option<Secret<String>>,
        }
        let login = Login { user: "ada", password: Some("hunter2".into()) };
        assert_eq!(format!("{login:?}"), "Login { user: \"ada\", password: Some(***) }");
        assert!(!format!("{login:#?}").contains("hunter2"));
    }

    #[test]
    fn the_memory_of_a_dropped_secret_is_wiped() {
        struct Probe<'a>(&'a std::cell::Cell<bool>);
        impl Zeroize for Probe<'_> {
            fn zeroize(&mut self) {
                self.0.set(true);
            }
        }
        let wiped = std::cell::Cell::new(false);
        drop(Secret::new(Probe(&wiped)));
        assert!(wiped.get());
    }

    #[test]
    fn a_secret_is_read_from_json_as_its_value() {
        let secret: Secret<String> = serde_json::from_str("\"sk_1\"").unwrap();
        assert_eq!(secret.expose(), "sk_1");
    }
}
