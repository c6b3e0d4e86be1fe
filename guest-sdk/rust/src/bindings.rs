//! What `wit-bindgen` makes of the WIT world. `wit/` is a link to the version that this crate speaks; the
//! packaged crate holds a copy of it.

wit_bindgen::generate!({
    world: "integration",
    path: "wit",
    pub_export_macro: true,
    export_macro_name: "export_component",
    default_bindings_module: "syncline_sdk::bindings",
});
