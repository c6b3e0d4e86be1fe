//! The accounts of people who use the dashboard.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

use crate::functions::text_enum;

text_enum!(
    /// What the person of an account may do. Each role has the permissions of the one before it.
    Role {
        /// Sees everything except secrets and settings, and changes nothing.
        Viewer,
        /// Changes everything within environments, and reads credentials and variables.
        Developer,
        /// Also manages environments, secret keys and accounts, and reads the audit log.
        Administrator,
    }
);
