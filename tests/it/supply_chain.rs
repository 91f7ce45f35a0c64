//! What our dependencies are allowed to be: `deny.toml`, checked without the database of advisories. `make deny` runs cargo-deny itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use semver::{Version, VersionReq};
use serde_json::Value;

/// A crate that is built for this platform.
struct Package {
    name: String,
    version: Version,
    license: String,
    source: Option<String>,
}

#[test]
fn every_dependency_has_a_license_that_we_accept() {
    let policy = policy();
    let allowed: Vec<spdx::Licensee> =
        texts(&policy["licenses"]["allow"]).iter().map(|text| spdx::Licensee::parse(text).unwrap()).collect();
    for Package { name, license, .. } in packages() {
        let expression = spdx::Expression::parse_mode(&license, spdx::ParseMode::LAX).unwrap();
        let is_allowed = expression.evaluate(|asked| allowed.iter().any(|licensee| licensee.satisfies(asked)));
        assert!(is_allowed, "{name} is under {license}: choose another crate, or allow it in deny.toml");
    }
}

#[test]
fn no_crate_is_built_in_two_versions_unless_deny_toml_says_why() {
    let policy = policy();
    let skipped = crates(&policy["bans"]["skip"]);
    let mut versions: BTreeMap<String, BTreeSet<Version>> = BTreeMap::new();
    let is_skipped = |package: &Package| {
        skipped.iter().any(|(name, asked)| *name == package.name && asked.matches(&package.version))
    };
    for package in packages().into_iter().filter(|package| !is_skipped(package)) {
        versions.entry(package.name).or_default().insert(package.version);
    }
    versions.retain(|_, versions| versions.len() > 1);
    assert!(versions.is_empty(), "agree on one version each, or skip one in deny.toml: {versions:?}");
}

#[test]
fn no_dependency_is_below_the_floor_of_an_advisory() {
    let policy = policy();
    let denied = crates(&policy["bans"]["deny"]);
    let packages = packages();
    for (name, bad) in denied {
        let package = packages.iter().find(|package| package.name == name);
        let package = package.unwrap_or_else(|| panic!("{name} is no dependency any more: remove its floor"));
        assert!(!bad.matches(&package.version), "{name} {} is {bad}: run `cargo update -p {name}`", package.version);
    }
}

#[test]
fn every_dependency_comes_from_the_registry_of_crates() {
    for Package { name, source, .. } in packages() {
        let is_known = source.as_deref().is_none_or(|source| source.ends_with("/rust-lang/crates.io-index"));
        assert!(is_known, "{name} comes from {source:?}");
    }
}

fn policy() -> toml::Table {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deny.toml");
    std::fs::read_to_string(path).unwrap().parse().unwrap()
}

/// Crates of a list, each as `name@versions`.
fn crates(list: &toml::Value) -> Vec<(String, VersionReq)> {
    let entries = list.as_array().unwrap().iter().map(|entry| {
        let text = entry["crate"].as_str().unwrap();
        let (name, versions) = text.split_once('@').unwrap();
        (name.to_owned(), VersionReq::parse(versions).unwrap())
    });
    entries.collect()
}

fn texts(list: &toml::Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

fn packages() -> Vec<Package> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked", "--filter-platform", &platform])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let package = |value: &Value| Package {
        name: value["name"].as_str().unwrap().to_owned(),
        version: value["version"].as_str().unwrap().parse().unwrap(),
        license: value["license"].as_str().unwrap_or("none").to_owned(),
        source: value["source"].as_str().map(str::to_owned),
    };
    metadata["packages"].as_array().unwrap().iter().map(package).collect()
}
