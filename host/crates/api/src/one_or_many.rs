//! A query parameter that may be given once, several times, or as a list.

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The values of a parameter, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OneOrMany(Vec<String>);

impl OneOrMany {
    pub fn into_vec(self) -> Vec<String> {
        self.0
    }
}

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Values;

        impl<'de> Visitor<'de> for Values {
            type Value = OneOrMany;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_str<E>(self, text: &str) -> Result<OneOrMany, E> {
                Ok(OneOrMany(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut texts: A) -> Result<OneOrMany, A::Error> {
                let mut values = Vec::new();
                while let Some(text) = texts.next_element()? {
                    values.push(text);
                }
                Ok(OneOrMany(values))
            }
        }

        deserializer.deserialize_any(Values)
    }
}
