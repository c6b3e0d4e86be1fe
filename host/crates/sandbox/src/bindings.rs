//! Rust bindings of the WIT world in `wit/`.

wasmtime::component::bindgen!({
    path: "../../../wit/0.1.1",
    world: "integration",
    imports: { default: async | trappable },
    exports: { default: async },
    trappable_error_type: { "syncline:integration/types.failure" => crate::GuestError },
});
