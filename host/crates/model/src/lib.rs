//! The shapes of records and inputs, and the processing of record text before it is stored.
//!
//! Text stays text. One walk over the bytes of a batch splits, validates and hashes it without building a tree, and
//! each record is stored as it was sent. Models are defined in [`types`], compiled into a [`Shape`], and published
//! as JSON Schemas.

mod assembly;
mod canonical;
mod formats;
#[cfg(test)]
mod fuzz;
mod json;
pub mod json_schema;
mod keeping;
mod merge;
mod problem;
pub mod records;
mod schema_cost;
mod schema_file;
mod shape;
mod strings;
pub mod types;
mod walk;

pub use canonical::{ChangeHash, canonical_hash, canonical_text};
pub use json::Malformed;
pub use keeping::{Keeping, OnBadRecord};
pub use merge::merge;
pub use problem::Problem;
pub use schema_file::check_cost;
pub use shape::{Invalid, Shape, ShapeError};
pub use strings::with_whole_characters;
pub use types::{Field, MAX_TYPE_DEPTH, Model, Models, ObjectType, Type};
