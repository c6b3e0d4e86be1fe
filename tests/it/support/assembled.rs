//! A guest assembled from single instructions, for cases that Rust cannot express.

use serde_json::json;
use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, DataSection, EntityType, ExportKind, ExportSection, Function,
    FunctionSection, HeapType, ImportSection, MemorySection, MemoryType, Module, RefType, TableSection,
    TableType, TypeSection, ValType,
};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

use super::repository;

/// Memory offset of the description, after its pointer and length.
const DESCRIPTION_AT: i32 = 8;
/// Memory offset of arguments, which the guest never reads.
const ARGUMENTS_AT: i32 = 4_096;
/// The type of [`Assembled::idle_functions`].
const IDLE: u32 = 4;
/// The interface that [`Assembled::importing_foreign`] imports.
const FOREIGN: &str = "wasi:keyvalue/store@0.2.0";

/// A component of Syncline's WIT world. All of its functions grow a table until that fails, and then trap.
pub struct Assembled {
    /// Kind and name of each function.
    functions: &'static [(&'static str, &'static str)],
    table_elements: u64,
    memory_pages: u64,
    imports_foreign: bool,
    idle_functions: u32,
}

impl Assembled {
    pub fn new(functions: &'static [(&'static str, &'static str)]) -> Self {
        Self { functions, table_elements: 0, memory_pages: 1, imports_foreign: false, idle_functions: 0 }
    }

    /// Sets the initial number of table elements.
    pub fn table_elements(self, table_elements: u64) -> Self {
        Self { table_elements, ..self }
    }

    /// Sets the initial number of memory pages of 64 KB.
    pub fn memory_pages(self, memory_pages: u64) -> Self {
        Self { memory_pages, ..self }
    }

    /// Adds an import that is not part of Syncline's WIT world.
    pub fn importing_foreign(self) -> Self {
        Self { imports_foreign: true, ..self }
    }

    /// Adds this many unused functions of 1,000 instructions each, which take time to compile.
    pub fn idle_functions(self, idle_functions: u32) -> Self {
        Self { idle_functions, ..self }
    }

    pub fn component(&self) -> Vec<u8> {
        let mut resolve = Resolve::default();
        resolve.push_dir(repository("wit/0.1.0")).expect("Syncline's WIT world can be parsed");
        let foreign = "package wasi:keyvalue@0.2.0; interface store { open: func(); }";
        resolve.push_str("foreign.wit", foreign).expect("it is a package");
        let import = if self.imports_foreign { format!("import {FOREIGN};") } else { String::new() };
        let world = format!(
            "package tests:assembled; world guest {{ include syncline:integration/integration@0.1.0; {import} }}"
        );
        let package = resolve.push_str("guest.wit", &world).expect("it is a package");
        let world = resolve.select_world(&[package], Some("guest")).expect("the package has the world");
        let mut module = self.module().finish();
        embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)
            .expect("a section can be added to the module");
        let encoder = ComponentEncoder::default().validate(true).module(&module);
        encoder.and_then(|mut encoder| encoder.encode()).expect("the module implements the world")
    }

    fn module(&self) -> Module {
        let functions: Vec<_> =
            self.functions.iter().map(|(kind, name)| json!({ "kind": kind, "name": name })).collect();
        let description = json!({ "functions": functions }).to_string();

        let mut types = TypeSection::new();
        let of_numbers = |count| std::iter::repeat_n(ValType::I32, count);
        types.ty().function([], of_numbers(1));
        types.ty().function(of_numbers(7), of_numbers(1));
        types.ty().function(of_numbers(4), of_numbers(1));
        types.ty().function([], []);
        types.ty().function(of_numbers(1), of_numbers(1));
        let mut imports = ImportSection::new();
        if self.imports_foreign {
            imports.import(FOREIGN, "open", EntityType::Function(3));
        }
        let first = imports.len();

        let mut kinds = FunctionSection::new();
        let mut exports = ExportSection::new();
        exports.export("memory", ExportKind::Memory, 0);
        let names = [
            "syncline:integration/functions@0.1.0#describe",
            "syncline:integration/functions@0.1.0#invoke",
            "cabi_realloc",
        ];
        for (kind, name) in (0..).zip(names) {
            kinds.function(kind);
            exports.export(name, ExportKind::Func, first + kind);
        }

        let mut code = CodeSection::new();
        let mut describe = Function::new([]);
        describe.instructions().i32_const(0).end();
        let mut invoke = Function::new([]);
        invoke
            .instructions()
            .loop_(BlockType::Empty)
            .ref_null(HeapType::FUNC)
            .i32_const(1_000)
            .table_grow(0)
            .i32_const(-1)
            .i32_ne()
            .br_if(0)
            .end()
            .unreachable()
            .end();
        let mut allocate = Function::new([]);
        allocate.instructions().i32_const(ARGUMENTS_AT).end();
        for function in [&describe, &invoke, &allocate] {
            code.function(function);
        }
        for number in 0..self.idle_functions {
            kinds.function(IDLE);
            let mut idle = Function::new([]);
            let mut instructions = idle.instructions();
            for step in 0..250 {
                instructions
                    .local_get(0)
                    .i32_const(i32::from_le_bytes((number + step).to_le_bytes()))
                    .i32_mul()
                    .local_set(0);
            }
            instructions.local_get(0).end();
            code.function(&idle);
        }

        let mut tables = TableSection::new();
        tables.table(TableType {
            element_type: RefType::FUNCREF,
            table64: false,
            minimum: self.table_elements,
            maximum: None,
            shared: false,
        });
        let mut memories = MemorySection::new();
        memories.memory(MemoryType {
            minimum: self.memory_pages,
            maximum: None,
            memory64: false,
            shared: false,
            page_size_log2: None,
        });
        let mut data = DataSection::new();
        let length = i32::try_from(description.len()).expect("it is short");
        let pointer = [DESCRIPTION_AT, length].map(i32::to_le_bytes).concat();
        data.active(0, &ConstExpr::i32_const(0), pointer);
        data.active(0, &ConstExpr::i32_const(DESCRIPTION_AT), description.into_bytes());

        let mut module = Module::new();
        module.section(&types);
        module.section(&imports);
        module.section(&kinds);
        module.section(&tables);
        module.section(&memories);
        module.section(&exports);
        module.section(&code);
        module.section(&data);
        module
    }
}
