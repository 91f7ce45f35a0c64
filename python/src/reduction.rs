//! Reads the value of Python that says how tensors are reduced, and tells Python the names in it.

use gradlane_abi::{GradlaneAccess, GradlaneDtype, GradlaneOp};
use gradlane_core::types::{Encoding, Priority};
use gradlane_session::{codec_named, dtype_named, op_named};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyDict, PyString};

use crate::errors;
use crate::wait::duration;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(names_table, module)?)?;
    module.add_function(wrap_pyfunction!(codec_of, module)?)
}

/// The names of element types with the bytes of one element, of reductions, of uses of parameters and of codecs.
#[pyfunction]
fn names_table(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let (table, dtypes) = (PyDict::new(py), PyDict::new(py));
    for dtype in GradlaneDtype::ALL {
        dtypes.set_item(dtype.name(), dtype.bytes())?;
    }
    table.set_item("dtypes", dtypes)?;
    table.set_item("ops", GradlaneOp::ALL.map(GradlaneOp::name))?;
    table.set_item("accesses", GradlaneAccess::ALL.map(GradlaneAccess::name))?;
    table.set_item("codecs", Encoding::all().map(|codec| codec.to_string()).collect::<Vec<_>>())?;
    Ok(table)
}

/// The codec with which a tensor travels, of those that this text chooses for it.
#[pyfunction]
fn codec_of(py: Python<'_>, choice: &str, name: &str, dtype: &str, shape: Vec<u64>) -> PyResult<String> {
    let dtype = dtype_named(dtype);
    let found = codec_named(choice).and_then(|choice| choice.codec_of(name, dtype?, &shape));
    found.map(|codec| codec.to_string()).map_err(|error| errors::raise(py, &error))
}

/// A `gradlane._reduction.Reduction`: a frozen value of Python with the fields that are read here.
pub(crate) struct Reduction(pub(crate) gradlane_session::Reduction);

impl<'py> FromPyObject<'_, 'py> for Reduction {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = given.py();
        let op: PyBackedStr = field(&given, intern!(py, "op"))?;
        let root: u32 = field(&given, intern!(py, "root"))?;
        let codec: PyBackedStr = field(&given, intern!(py, "codec"))?;
        let set = given.getattr(intern!(py, "process_set"))?;
        let members = if set.is_none() { None } else { Some(field(&set, intern!(py, "ranks"))?) };
        let timeout: Option<f64> = field(&given, intern!(py, "timeout"))?;
        Ok(Self(gradlane_session::Reduction {
            op: op_named(&op, root).map_err(|error| errors::raise(py, &error))?,
            weight: field(&given, intern!(py, "weight"))?,
            priority: Priority(field(&given, intern!(py, "priority"))?),
            codec: codec_named(&codec).map_err(|error| errors::raise(py, &error))?,
            members,
            receiver: field(&given, intern!(py, "receiver"))?,
            timeout: timeout.map(duration),
        }))
    }
}

/// Reads a field; an error about its type names it.
fn field<'py, T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>>(
    of: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
) -> PyResult<T> {
    let value = of.getattr(name)?;
    value.extract::<T>().map_err(|error| {
        let error: PyErr = error.into();
        match error.is_instance_of::<PyTypeError>(of.py()) {
            true => PyTypeError::new_err(format!("{name}: {}", error.value(of.py()))),
            false => error,
        }
    })
}
