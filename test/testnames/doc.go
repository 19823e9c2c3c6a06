// Package testnames finds the tests of a package by name, for the tests that keep a design note's references to tests true.
package testnames
