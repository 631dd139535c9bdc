//! The exported functions, by area. They call the other modules, which do the work.

mod contexts;
mod copies;
mod devices;
mod events;
mod fills;
mod graphs;
mod launches;
mod libraries;
mod links;
mod managed;
mod memory;
mod modules;
mod nvml;
mod own;
mod streams;
mod virtual_memory;
