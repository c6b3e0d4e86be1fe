//! A guest that misbehaves on purpose, so that tests exercise every limit and every rejection through the real sandbox
//! boundary. It only works as WebAssembly.

mod clock;
mod crashes;
mod floods;
mod outside;
mod saves;

use syncline_sdk::bindings::exports::syncline::integration::functions::Guest;
use syncline_sdk::bindings::syncline::integration::types::Failure;
use syncline_sdk::function::{Function, describe, invoke, report_panics};
use syncline_sdk::{Result, action};

const FUNCTIONS: &[Function] = &[
    crashes::panic::FUNCTION,
    crashes::trap::FUNCTION,
    crashes::exit::FUNCTION,
    crashes::read_out_of_bounds::FUNCTION,
    crashes::recurse::FUNCTION,
    crashes::recurse_in_memory::FUNCTION,
    crashes::fail::FUNCTION,
    floods::spin::FUNCTION,
    floods::sleep::FUNCTION,
    floods::allocate::FUNCTION,
    floods::reserve::FUNCTION,
    floods::log_flood::FUNCTION,
    floods::request_flood::FUNCTION,
    floods::big_log::FUNCTION,
    floods::request_storm::FUNCTION,
    floods::big_output::FUNCTION,
    outside::fetch::FUNCTION,
    outside::tell_answers::FUNCTION,
    outside::reach::FUNCTION,
    outside::read_env::FUNCTION,
    outside::tell_env::FUNCTION,
    outside::tell_credentials::FUNCTION,
    outside::read_file::FUNCTION,
    outside::open_socket::FUNCTION,
    outside::print::FUNCTION,
    outside::print_and_wait::FUNCTION,
    outside::wait_and_look::FUNCTION,
    outside::log_fields::FUNCTION,
    outside::bad_utf8_log::FUNCTION,
    saves::save_raw::FUNCTION,
    saves::save_measured::FUNCTION,
    saves::change_raw::FUNCTION,
    saves::find_raw::FUNCTION,
    saves::commit_raw::FUNCTION,
    saves::commit_other::FUNCTION,
    saves::steps::FUNCTION,
    bad_json_output::FUNCTION,
    bad_utf8_output::FUNCTION,
];

/// Implemented below, because the SDK cannot produce such output.
#[action]
fn bad_json_output() -> Result {
    Ok(())
}

/// Implemented below, because the SDK cannot produce such output.
#[action]
fn bad_utf8_output() -> Result {
    Ok(())
}

struct Component;

impl Guest for Component {
    fn describe() -> String {
        describe(FUNCTIONS)
    }

    fn invoke(kind: String, name: String, input: Option<String>) -> Result<Option<String>, Failure> {
        report_panics();
        match name.as_str() {
            "bad-json-output" => Ok(Some("{\"half\": ".to_owned())),
            // SAFETY: none. The host must detect the invalid output.
            "bad-utf8-output" => Ok(Some(unsafe { String::from_utf8_unchecked(vec![b'"', 0xff, b'"']) })),
            _ => invoke(FUNCTIONS, &kind, &name, input),
        }
    }
}

syncline_sdk::bindings::export_component!(Component with_types_in syncline_sdk::bindings);
