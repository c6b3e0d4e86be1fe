//! The declarative macros: `export!` and the log lines.

/// Builds a component from annotated functions. List each function once; paths into modules are allowed.
///
/// ```
/// use syncline_sdk::{Result, sync};
///
/// mod billing {
///     # use syncline_sdk::{Result, sync};
///     #[sync]
///     pub fn invoices() -> Result {
///         Ok(())
///     }
/// }
///
/// #[sync]
/// fn customers() -> Result {
///     Ok(())
/// }
///
/// syncline_sdk::export!(customers, billing::invoices);
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! export {
    ($($function:path),+ $(,)?) => {
        #[doc(hidden)]
        pub const SYNCLINE_FUNCTIONS: &[$crate::function::Function] = &[$(<$function>::FUNCTION),+];

        #[cfg(target_family = "wasm")]
        const _: () = {
            struct Component;

            impl $crate::bindings::exports::syncline::integration::functions::Guest for Component {
                fn describe() -> String {
                    $crate::function::report_panics();
                    $crate::function::describe(SYNCLINE_FUNCTIONS)
                }

                fn invoke(
                    kind: String,
                    name: String,
                    input: Option<String>,
                ) -> Result<Option<String>, $crate::bindings::syncline::integration::types::Failure> {
                    $crate::function::report_panics();
                    $crate::function::invoke(SYNCLINE_FUNCTIONS, &kind, &name, input)
                }
            }

            $crate::bindings::export_component!(Component with_types_in $crate::bindings);
        };
    };
}

/// Adds a debug line. Takes the arguments of `format!`.
#[doc(hidden)]
#[macro_export]
macro_rules! __log_debug {
    ($($message:tt)+) => {
        $crate::log::write_plain($crate::log::Level::Debug, &::std::format!($($message)+))
    };
}

/// Adds an info line. Takes the arguments of `format!`.
#[doc(hidden)]
#[macro_export]
macro_rules! __log_info {
    ($($message:tt)+) => {
        $crate::log::write_plain($crate::log::Level::Info, &::std::format!($($message)+))
    };
}

/// Adds a line about something unusual that is not a failure. Takes the arguments of `format!`.
#[doc(hidden)]
#[macro_export]
macro_rules! __log_warn {
    ($($message:tt)+) => {
        $crate::log::write_plain($crate::log::Level::Warn, &::std::format!($($message)+))
    };
}

/// Adds a line about an error. Takes the arguments of `format!`.
#[doc(hidden)]
#[macro_export]
macro_rules! __log_error {
    ($($message:tt)+) => {
        $crate::log::write_plain($crate::log::Level::Error, &::std::format!($($message)+))
    };
}
