//! The accounts of people who use the dashboard.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

/// What the person of an account may do. Each role has the permissions of the one before it.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Display,
    EnumString,
    IntoStaticStr,
    VariantArray,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Role {
    /// Sees everything except secrets and settings, and changes nothing.
    Viewer,
    /// Changes everything within environments, and reads credentials and variables.
    Developer,
    /// Also manages environments, secret keys and accounts, and reads the audit log.
    Administrator,
}

impl Role {
    pub const ALL: &[Self] = Self::VARIANTS;

    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
