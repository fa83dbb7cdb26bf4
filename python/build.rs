//! Link arguments that an extension module needs where the linker insists on all symbols (macOS).

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
