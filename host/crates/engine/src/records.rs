//! Records: committed by functions, read and followed by clients.

pub(crate) mod changes;
pub(crate) mod commit;
pub(crate) mod dead_letters;
pub(crate) mod progress;
pub(crate) mod read;
pub(crate) mod stream_numbers;
