//! The world of `wit/`, as Rust.

wasmtime::component::bindgen!({
    path: "../../../wit/0.1.0",
    world: "integration",
    imports: { default: async | trappable },
    exports: { default: async },
});
