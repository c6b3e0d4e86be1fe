//! The attributes of `syncline-sdk`. Each keeps its function unchanged, so that tests can call it directly, and
//! adds a hidden type of the same name with the function's entry in the component's table.

use proc_macro::TokenStream;
use proc_macro2::{Span, TokenStream as Tokens};
use quote::quote;
use syn::spanned::Spanned;
use syn::{Attribute, Error, Expr, ExprLit, Ident, ItemFn, Lit, Meta, Result, parse_macro_input};

/// A function that runs on a schedule and saves records. It has no parameters and returns `Result`. It saves
/// records with a `Writer`.
///
/// Its name in `syncline.toml` is the Rust function's name in kebab-case. Its description is the doc comment.
#[proc_macro_attribute]
pub fn sync(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand("sync", Input::Never, arguments, item)
}

/// A function that runs when a backend calls it. It has one parameter that is deserialized from JSON, or none. It
/// returns a `Result` of a value that is serialized as JSON; `()` means no output.
///
/// Its name in `syncline.toml` is the Rust function's name in kebab-case. Its description is the doc comment.
#[proc_macro_attribute]
pub fn action(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand("action", Input::Maybe, arguments, item)
}

/// A function that runs when the provider calls the integration's webhook URL. Its parameter is a `Webhook`, whose
/// body can be deserialized as any type. It returns `Result`.
///
/// Its name in `syncline.toml` is the Rust function's name in kebab-case. Its description is the doc comment.
#[proc_macro_attribute]
pub fn webhook(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand("webhook", Input::Always, arguments, item)
}

/// A function that runs on an event of a connection: `#[lifecycle(connection_created)]`, `connection_deleting` or
/// `connection_validating`. An error of the latter rejects the connection. The function has no parameters, returns
/// `Result`, and has the event's name in `syncline.toml`.
#[proc_macro_attribute]
pub fn lifecycle(arguments: TokenStream, item: TokenStream) -> TokenStream {
    const EVENTS: [&str; 3] = ["connection_created", "connection_deleting", "connection_validating"];
    let event = parse_macro_input!(arguments as Option<Ident>);
    match event.filter(|event| EVENTS.iter().any(|known| event == known)) {
        Some(event) => {
            let function = parse_macro_input!(item as ItemFn);
            or_error(entry("lifecycle", &event, Input::Never, &function))
        }
        None => {
            let message = "say which event, as in `#[lifecycle(connection_created)]`; the others are \
                           `connection_deleting` and `connection_validating`";
            Error::new(Span::call_site(), message).to_compile_error().into()
        }
    }
}

/// Whether functions of a kind have an input.
#[derive(Clone, Copy, PartialEq)]
enum Input {
    Never,
    Maybe,
    Always,
}

fn expand(kind: &str, input: Input, arguments: TokenStream, item: TokenStream) -> TokenStream {
    if !arguments.is_empty() {
        let message = format!("`#[{kind}]` takes no arguments");
        return Error::new(Span::call_site(), message).to_compile_error().into();
    }
    let function = parse_macro_input!(item as ItemFn);
    or_error(entry(kind, &function.sig.ident, input, &function))
}

fn or_error(tokens: Result<Tokens>) -> TokenStream {
    tokens.unwrap_or_else(Error::into_compile_error).into()
}

fn entry(kind: &str, name: &Ident, input: Input, function: &ItemFn) -> Result<Tokens> {
    check_signature(kind, input, function)?;
    let ident = &function.sig.ident;
    let visibility = &function.vis;
    let name = kebab_case(name);
    let description = description(&function.attrs);
    let takes_input = !function.sig.inputs.is_empty();
    let call = match (kind, takes_input) {
        ("action", true) => quote!(|input| ::syncline_sdk::function::call_with(#ident, input)),
        ("action", false) => quote!(|_| ::syncline_sdk::function::call(#ident)),
        (_, true) => quote!(|input| ::syncline_sdk::function::call_with::<_, (), _>(#ident, input)),
        (_, false) => quote!(|_| ::syncline_sdk::function::call_plain(#ident)),
    };
    Ok(quote! {
        #function

        // A struct with braces can have the name of a function, so `export!` finds both by one path.
        #[doc(hidden)]
        #[allow(non_camel_case_types)]
        #visibility struct #ident {}

        impl #ident {
            #[doc(hidden)]
            pub const FUNCTION: ::syncline_sdk::function::Function = ::syncline_sdk::function::Function {
                kind: #kind,
                name: #name,
                description: #description,
                call: #call,
            };
        }
    })
}

fn check_signature(kind: &str, input: Input, function: &ItemFn) -> Result<()> {
    let signature = &function.sig;
    let refuse = |span: Span, rule: &str| Err(Error::new(span, format!("`#[{kind}]` functions {rule}")));
    if let Some(asyncness) = &signature.asyncness {
        return refuse(asyncness.span(), "must not be async, because calls of the host are synchronous");
    }
    if !signature.generics.params.is_empty() {
        return refuse(signature.generics.span(), "must not have type parameters");
    }
    match (input, signature.inputs.len()) {
        (Input::Never, 0) | (Input::Maybe, 0 | 1) | (Input::Always, 1) => Ok(()),
        (Input::Never, _) => refuse(signature.inputs.span(), "must not have parameters"),
        (Input::Maybe, _) => refuse(signature.inputs.span(), "must have one parameter or none"),
        (Input::Always, _) => refuse(signature.span(), "must have one parameter"),
    }
}

fn kebab_case(ident: &Ident) -> String {
    ident.to_string().trim_start_matches("r#").trim_matches('_').replace('_', "-")
}

/// Returns the doc comment, without the space at the start of each line.
fn description(attributes: &[Attribute]) -> String {
    let lines: Vec<String> = attributes
        .iter()
        .filter_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
                Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value().trim().to_owned()),
                _ => None,
            },
            _ => None,
        })
        .collect();
    lines.join("\n").trim().to_owned()
}
