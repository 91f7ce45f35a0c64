//! Makes the header of the C interface of its sources, so that a test can compare it with the one that is checked in.
//!
//! The interface is small and of one kind: constants, numbers with names, structures, functions. To translate that takes less than a
//! generator of bindings, which would bring a second parser of Rust into every build.

use std::fmt::Write;
use std::path::Path;

use syn::{Attribute, Expr, Fields, FnArg, Item, Lit, Meta, Pat, ReturnType, Type};

/// The sources in the order of the header.
const SOURCES: [&str; 9] = [
    "abi/src/status.rs",
    "abi/src/types.rs",
    "abi/src/rows.rs",
    "session/src/c/sessions.rs",
    "session/src/c/operations.rs",
    "session/src/c/steps.rs",
    "session/src/c/parameters.rs",
    "session/src/c/tables.rs",
    "session/src/c/checkpoints.rs",
];

fn main() {
    let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins");
    let read = |path: &str| {
        let path = plugins.join(path);
        println!("cargo::rerun-if-changed={}", path.display());
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let mut header = String::new();
    comment(&mut header, "", read("session/include/manual.txt").lines());
    header.push_str(
        "\n#ifndef GRADLANE_H\n#define GRADLANE_H\n\n#include <stddef.h>\n#include <stdint.h>\n\n\
         #ifdef __cplusplus\nextern \"C\" {\n#endif\n",
    );
    for source in SOURCES {
        let source = syn::parse_file(&read(source)).expect("it compiles");
        source.items.iter().for_each(|item| translate(&mut header, item));
    }
    header.push_str("\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n");
    #[expect(clippy::disallowed_methods, reason = "cargo tells a build script where to write by a variable")]
    let folder = std::env::var_os("OUT_DIR").expect("cargo sets it");
    std::fs::write(Path::new(&folder).join("gradlane.h"), header).expect("cargo's folder can be written");
}

/// Adds what C sees of an item.
fn translate(header: &mut String, item: &Item) {
    match item {
        Item::Const(item) if is_public(&item.vis) => {
            describe(header, "", &item.attrs);
            writeln!(header, "#define {} {}", item.ident, number(&item.expr))
        }
        Item::Type(item) if is_public(&item.vis) => {
            describe(header, "", &item.attrs);
            writeln!(header, "typedef {};", declared(&item.ty, &item.ident.to_string()))
        }
        Item::Enum(item) if is_public(&item.vis) => {
            describe(header, "", &item.attrs);
            writeln!(header, "typedef enum {} {{", item.ident).expect("to memory");
            for variant in &item.variants {
                describe(header, "    ", &variant.attrs);
                let (_, value) = variant.discriminant.as_ref().expect("every number is written down");
                let name = format!("{}{}", item.ident, variant.ident);
                writeln!(header, "    {} = {},", shouted(&name), number(value)).expect("to memory");
            }
            writeln!(header, "}} {};", item.ident)
        }
        Item::Struct(item) if is_public(&item.vis) => {
            let Fields::Named(fields) = &item.fields else { panic!("{}: its fields need names", item.ident) };
            describe(header, "", &item.attrs);
            writeln!(header, "typedef struct {} {{", item.ident).expect("to memory");
            for field in &fields.named {
                describe(header, "    ", &field.attrs);
                let name = field.ident.as_ref().expect("named").to_string();
                writeln!(header, "    {};", declared(&field.ty, &name)).expect("to memory");
            }
            writeln!(header, "}} {};", item.ident)
        }
        Item::Fn(item) if is_public(&item.vis) => {
            assert!(item.sig.abi.is_some(), "{} cannot be called from C", item.sig.ident);
            describe(header, "", &item.attrs);
            let ReturnType::Type(_, returned) = &item.sig.output else { panic!("{} returns nothing", item.sig.ident) };
            let arguments: Vec<String> = item.sig.inputs.iter().map(argument).collect();
            let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
            writeln!(header, "{};", declared(returned, &format!("{}({arguments})", item.sig.ident)))
        }
        _ => Ok(()),
    }
    .expect("to memory");
}

fn is_public(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Public(_))
}

/// Adds the documentation among these attributes as a comment, after an empty line where a new item begins.
fn describe(header: &mut String, indent: &str, attributes: &[Attribute]) {
    let line = |attribute: &Attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value().trim_end().strip_prefix(' ').unwrap_or_default().to_owned()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    };
    let lines: Vec<String> = attributes.iter().filter_map(line).collect();
    assert!(!lines.is_empty(), "what C sees is documented");
    if indent.is_empty() {
        header.push('\n');
    }
    comment(header, indent, lines.iter().map(String::as_str));
}

fn comment<'a>(header: &mut String, indent: &str, lines: impl Iterator<Item = &'a str>) {
    for line in lines {
        let gap = if line.is_empty() { "" } else { " " };
        writeln!(header, "{indent}//{gap}{line}").expect("to memory");
    }
}

fn argument(argument: &FnArg) -> String {
    let FnArg::Typed(argument) = argument else { panic!("functions of C have no self") };
    let Pat::Ident(name) = &*argument.pat else { panic!("an argument needs a name") };
    declared(&argument.ty, &name.ident.to_string())
}

/// The declaration of `name` with this type.
fn declared(of: &Type, name: &str) -> String {
    match of {
        Type::Ptr(pointer) => {
            let is_constant = matches!(pointer.mutability, syn::PointerMutability::Const(_));
            match &*pointer.elem {
                // What is constant of a pointer stands behind its star.
                elem @ syn::Type::Ptr(_) if is_constant => declared(elem, &format!("const *{name}")),
                elem => format!("{}{}", if is_constant { "const " } else { "" }, declared(elem, &format!("*{name}"))),
            }
        }
        Type::Path(path) => {
            let last = path.path.segments.last().expect("a path is not empty");
            let name_in_c = match last.ident.to_string().as_str() {
                "Option" => return called(&last.arguments, name),
                "c_void" => "void".to_owned(),
                "c_char" => "char".to_owned(),
                "usize" => "size_t".to_owned(),
                "f32" => "float".to_owned(),
                "f64" => "double".to_owned(),
                "u32" => "uint32_t".to_owned(),
                "u64" => "uint64_t".to_owned(),
                "i32" => "int32_t".to_owned(),
                ours if ours.starts_with("Gradlane") => ours.to_owned(),
                other => panic!("{name}: {other} has no name in C"),
            };
            format!("{name_in_c} {name}")
        }
        _ => panic!("{name}: its type has no form in C"),
    }
}

/// The declaration of `name` as an optional function, which in C is a pointer that may be null.
fn called(arguments: &syn::PathArguments, name: &str) -> String {
    let syn::PathArguments::AngleBracketed(inner) = arguments else { panic!("{name}: of what?") };
    let Some(syn::GenericArgument::Type(Type::FnPtr(function))) = inner.args.first() else {
        panic!("{name}: of functions alone an option has a form in C")
    };
    assert!(matches!(function.output, ReturnType::Default), "{name}: a callback returns nothing");
    let argument = |argument: &syn::NamedArg| {
        let (name, _) = argument.name.as_ref().expect("an argument needs a name");
        declared(&argument.ty, &name.to_string())
    };
    let arguments: Vec<String> = function.inputs.iter().map(argument).collect();
    format!("void (*{name})({})", arguments.join(", "))
}

fn number(of: &Expr) -> String {
    let Expr::Lit(literal) = of else { panic!("numbers are written down") };
    let Lit::Int(number) = &literal.lit else { panic!("numbers are integers") };
    let digits = number.base10_digits();
    if digits.len() > 10 { format!("UINT64_C({digits})") } else { digits.to_owned() }
}

/// `GRADLANE_STATUS_OK` for `GradlaneStatusOk`.
fn shouted(name: &str) -> String {
    let mut shouted = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !shouted.is_empty() {
            shouted.push('_');
        }
        shouted.push(letter.to_ascii_uppercase());
    }
    shouted
}
