//! The code that `wit-bindgen` generates from the WIT world. `wit/` is a link to the version of the world that this
//! crate uses, and the published crate contains a copy of it.

wit_bindgen::generate!({
    world: "integration",
    path: "wit",
    pub_export_macro: true,
    export_macro_name: "export_component",
    default_bindings_module: "syncline_sdk::bindings",
});
