// Marks the names that libdsv4.so and libdsv4.a show. All other names of the library are hidden.
#pragma once

#define DSV4_API __attribute__((visibility("default")))
