//! The dashboard.

mod accounts;
mod keys;
mod pages;
mod security;
